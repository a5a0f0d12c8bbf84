"""Following many Sources in one process, within bounds."""
