"""What stores on SQL databases share: the rules, as plans that any of them can run."""
