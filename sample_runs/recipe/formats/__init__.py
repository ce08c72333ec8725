"""One script a format: it writes that format's sample in ``sample_runs/formats`` by the trainer's own code where that runs."""
