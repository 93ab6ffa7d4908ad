"""Where the input comes from: text or random numbers. Each source gives token labels and embeddings."""
