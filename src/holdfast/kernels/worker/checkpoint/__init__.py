"""The namespace as data and back, with the settings of the process that cells rely on."""
