"""Penstock feeds training jobs: what the model sees at step N is a pure function of the dataset and N."""
