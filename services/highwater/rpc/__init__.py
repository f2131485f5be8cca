"""The part that every server and client of Highwater's contracts shares: channels, servers, errors, settings."""
