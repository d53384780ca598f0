// A program of ragged requests as one of a dense sequence that has the rows of all of them one
// after another: what needs positions of the whole, as ranks do, needs no other program.
#pragma once

#include <array>
#include <cstddef>

#include "flexc/options.h"
#include "flexc/result.h"
#include "ir/program.h"

namespace flexc::passes {

// Buffers that it reads beside its own, all i32. Names with a dot are no names of the language.
struct RequestBuffers {
    const char *of_query, *of_key; // [Q_LEN], [KV_LEN]: the request of a row; of none, kNoQuery or
                                   // kNoKey
    const char* facts;             // [requests, kRequestFacts]
};
inline constexpr RequestBuffers kRequestBuffers = {"requests.of_query", "requests.of_key",
                                                   "requests.facts"};
inline constexpr int kNoQuery = -1, kNoKey = -2;
// What stands in a request's row of facts. The first two are rows of the sequence where q_idx and
// kv_idx are 0.
enum RequestFact : int { kFirstQuery, kFirstKey, kQueryCount, kKeyCount, kRequestFacts };
// Of dims that are the longest request's, and the number of requests.
inline constexpr const char *kRequestCount = "requests", *kLongestQueries = "requests.Q_LEN",
                            *kLongestKeys = "requests.KV_LEN";

// By options.one_sequence.
Result<void> make_one_sequence(ir::Program& program, OneSequence lengths);

} // namespace flexc::passes
