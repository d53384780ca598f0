// What is known of a program's logits when a kernel is compiled.
#pragma once

#include "sm90/bias_tile.cuh"
#include "sm90/forward_layout.cuh"
#include "sm90/fragment.cuh"
#include "sm90/key_width.cuh"
#include "sm90/score_form.h"

namespace sm90 {

constexpr ScoreForm kForm = mod::kScoreForm;

// Whether P may be as small and as large as floats.
template <typename E> constexpr bool kExponentsAreWide = true;
template <> constexpr bool kExponentsAreWide<flexc_f16> = false;

// The exponent of an element is
//     logit * factor() + offset of its row,
// with everything that does not change within a row and a block of keys left to the offset.
struct LogitForm {
    static constexpr bool kPlain = !mod::kHasScoreMod || kForm.is_product;
    static constexpr bool kAffine = !kPlain && kForm.is_affine;
    static constexpr bool kCapped = kAffine && kForm.is_capped;
    static constexpr bool kMultiplies = kPlain && kForm.is_product && !kForm.multiplier_is_one;
    // Whether products become exponents by a factor of the row that may be any number.
    static constexpr bool kHasFactor = kPlain && kForm.has_factor;
    static constexpr bool kHasRowAddend = (kPlain || kAffine) && kForm.has_row_addend;

    // Whether products bring what grows from key to key, beside an offset of each tile.
    static constexpr bool kHasSlopedProducts = kPlain && kMultipliesSlope;

    // Whether products are added to a function of the distance.
    static constexpr bool kStartsWithDistances =
        kPlain && mod::TabulatedVectors::kDistancesComeFirst;

    // Rows of the 2-D key index that a tile has; what is added for one of them is part of the base
    // where all threads agree on which of their columns are in it.
    static constexpr bool kHasIndex2dRows = kAffine && kLoadsIndex2dRows;
    static constexpr int kIndex2dRowsOfTile = kHasIndex2dRows ? mod::kKeyTile / kKeyWidth : 1;
    static constexpr bool kRowsAreAligned = kHasIndex2dRows && kKeyWidth % 8 == 0;
    static constexpr bool kSelectsRows = kHasIndex2dRows && !kRowsAreAligned;
    static constexpr bool kHasBase = kHasRowAddend || kRowsAreAligned;
    static constexpr int kBases = kRowsAreAligned ? kIndex2dRowsOfTile : 1;
    static constexpr __device__ int base_of(int j) { return j / (kFragmentColumns / kBases); }

    // Whether products are added to the dense bias, or to what tables have, which is there first,
    // instead of the other way round: that needs no score, and comes under the exponents of the
    // keys before. Which keys come next is known where no block mask says it.
    static constexpr bool kStartsWithTables =
        (mod::StagedTables::kAreAligned || mod::StagedTables::kComeFirst) &&
        !mod::Mask::kHasBlockMask;
    // Whether tabulated values that an element's own addend is computed from are there as early.
    static constexpr bool kTabulatedIsThere =
        !kHasTabulated ||
        (mod::StagedTables::kComeFirst && !kForm.has_key_addend && !kForm.has_distance_addend);
    // Beside it, products bring what keys add or a slope, and rows have offsets of exponents.
    static constexpr bool kStartsWithBias =
        kStartsWithDistances || (kAffine && (kCopiesBiases || kStartsWithTables) &&
                                 kForm.multiplier_is_one && !kCapped && !kRowsAreAligned &&
                                 (!kForm.has_slope || kMultipliesSlope) && kTabulatedIsThere);
    static_assert(!kMultipliesSlope || kStartsWithBias || kPlain);
    // Whether addends are in units of products, in which large numbers may have no room.
    static constexpr bool kDividesAddends =
        kPlain ? kMultipliesKeyAddend || kRowKeyProducts > 0 || kStartsWithDistances ||
                     (kHasRowAddend && !kHasFactor && !kHasSlopedProducts)
               : kStartsWithBias && (kMultipliesKeyAddend || kHasRowAddend);
    // Whether logits are exponents already.
    static constexpr bool kFactorIsOne = kAffine && kForm.are_exponents;
    // Whether a slope's line is relative to a number of the row: it then takes one instruction for
    // each element, and no registers for what columns add.
    static constexpr bool kLineIsRelative =
        kAffine && mod::ForwardSchedule::kStartsAtHighest && kForm.has_slope && kHasRowAddend;
    // Whether, in tiles of shifted reads beyond all clamps, elements are sums of multiples of
    // these: then products are added to what columns have, and the softmax has the rows' as
    // offsets.
    static constexpr bool kSumsShiftedEnds =
        kStartsWithBias && mod::kSizes.shifted_end_bytes != 0 && mod::ShiftedReads::kAreSum;
    static constexpr bool kHasOffset =
        (!kCapped && kHasBase && !kLineIsRelative) || kSumsShiftedEnds;
    static constexpr bool kOffsetsAreExponents = kHasFactor || kHasSlopedProducts;
    // Whether P are relative to a maximum that does not change, see BoundedSoftmax. In f16 they
    // would vanish.
    static constexpr bool kAreBounded = kForm.exponent_bound > 0 && kForm.exponent_bound <= 74 &&
                                        kExponentsAreWide<mod::Element> && !kHasOffset &&
                                        !kHasFactor;
    // Whether apply() gives exponents relative to the running maxima so far, which lower() changes:
    // no part of a logit is left to the softmax, and the running maxima are in what repeats, or in
    // what is added to rows.
    static constexpr bool kAreRelative =
        (kMultipliesIndex2dRows || kLineIsRelative) && !kAreBounded;
    // Number of parts of a tile's columns in which a row has an offset of its own.
    static constexpr int kOffsets = kCapped ? 1 : kBases;
    static constexpr __device__ int offset_of(int j) { return kOffsets == 1 ? 0 : base_of(j); }
};

} // namespace sm90
