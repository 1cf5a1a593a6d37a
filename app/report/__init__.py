"""The `report` command: tables, plots and one self-contained page from run and sweep folders."""
