"""A real desktop on an X display of its own: shown as text or image, acted on by mouse and keyboard."""
