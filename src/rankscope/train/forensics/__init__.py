"""Values that are not finite: noticed on the device, kept out of the weights, traced to where they began."""
