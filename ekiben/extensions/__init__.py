"""What both doors share beyond inference: trace and log settings, shared-memory regions."""
