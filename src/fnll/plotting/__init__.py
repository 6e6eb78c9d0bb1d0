"""How our figures look: colours, lines and panels, for report and scenario cards."""
