"""What the machine has: readers of procfs, sysfs and machine files that together make an inventory snapshot."""
