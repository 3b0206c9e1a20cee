"""The lowest room: errors, clocks, protos, threads and text that every other room may use."""
