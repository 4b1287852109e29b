"""Load, peers and reports: every performance figure of the README comes from here (`scripts/bench`)."""
