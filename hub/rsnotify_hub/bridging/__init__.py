"""What all bridges to brokers share: cursors, sending from the log, and connecting again."""
