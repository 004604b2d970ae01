"""What a cell that runs again must find as it was: clocks, random numbers, files, waits."""
