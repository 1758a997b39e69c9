"""The incident page: one file that is read in any browser and asks nobody for anything."""
