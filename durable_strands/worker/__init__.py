"""The process: plugin, configuration, shutdown."""
