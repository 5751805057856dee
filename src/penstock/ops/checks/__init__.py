"""Doctor's checks, one module per subject. Pure: facts in, findings out."""
