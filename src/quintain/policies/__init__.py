"""Who acts: `chat` (a served model), `local` (owns its weights), `scripted`, `replay`."""
