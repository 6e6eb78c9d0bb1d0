"""An audit of somebody's own federation: a panel of methods, and one verdict on clients and samples."""
