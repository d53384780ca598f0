buffer sinks: f32[H]
sink {
  x = sinks[h]
}
