"""What several rules read off a machine before they judge it."""
