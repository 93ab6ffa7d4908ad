"""What the product promises about speed and size, measured as ratios within one run."""
