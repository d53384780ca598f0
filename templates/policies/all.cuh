// Defaults of all policies: what a kernel knows of a feature if the program does not have it.
// mod.cuh uses this namespace: a policy that a kernel asks for is the program's own, mod::Policy,
// which derives from the default and names what differs, or if there is none, the default itself.
#pragma once

#include "policies/added_gradients.cuh"
#include "policies/dense_bias.cuh"
#include "policies/element_sums.cuh"
#include "policies/forward_schedule.cuh"
#include "policies/grid_gradients.cuh"
#include "policies/key_index_2d.cuh"
#include "policies/key_kinds.cuh"
#include "policies/layouts.cuh"
#include "policies/line_gradients.cuh"
#include "policies/mask.cuh"
#include "policies/read_gradients.cuh"
#include "policies/score_derivative.cuh"
#include "policies/score_parts.cuh"
#include "policies/shifted_gradients.cuh"
#include "policies/shifted_reads.cuh"
#include "policies/sink.cuh"
#include "policies/staged_tables.cuh"
#include "policies/table_gradients.cuh"
#include "policies/tabulated_vectors.cuh"
#include "policies/term_gradients.cuh"
#include "policies/term_sums.cuh"
