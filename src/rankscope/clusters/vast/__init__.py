"""A run on a rented machine of Vast: found, started, watched, fetched and given back."""
