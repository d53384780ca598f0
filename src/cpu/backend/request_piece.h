// Computes pieces of the work on requests: some queries of some heads, with some keys. A tile of
// keys is loaded once for all queries of a piece, including those of several heads. A few queries
// of many heads are rows of one product.
#pragma once

#include "cpu/backend/attention.h"
#include "cpu/backend/request_block.h"
#include "cpu/backend/request_results.h"
#include "cpu/backend/request_tiles.h"
#include "cpu/backend/shared_mask_results.h"

namespace flexc::cpu::requests {

// What all pieces of a launch have in common.
struct Common {
    const TileFunctions& functions;
    const Launch& launch;
    const MaskResultsOfRequests& mask_results;
    const SharedTiles& tiles;
    const Parts& parts;
};

// Stores the piece's results, or keeps them as parts.
void compute(const Common& common, const SequenceWork& work, Scratch& scratch);
// Evaluates the mask at the piece's tiles, with its first head, for all heads.
void evaluate_mask(const Common& common, const SequenceWork& work, Scratch& scratch);

} // namespace flexc::cpu::requests
