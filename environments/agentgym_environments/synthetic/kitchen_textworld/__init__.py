"""Chores in kitchens of our own, on ALFWorld's engine."""
