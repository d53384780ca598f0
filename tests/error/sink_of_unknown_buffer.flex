sink = sinks[h]
