"""The rules, by subject. Each subject's package lists its rules; importing it registers them."""
