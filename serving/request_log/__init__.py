"""The request log: writes the PredictionLogs that `logging_config` asks for to files."""
