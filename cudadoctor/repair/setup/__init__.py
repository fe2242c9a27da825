"""`setup DIR`: choosing, making and proving a new environment."""
