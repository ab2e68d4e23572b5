"""WebShop: its own products and goals, in Python alone."""
