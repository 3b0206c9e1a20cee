"""Load on a server, and what it shows: the CTR model, the demo, and what they need."""
