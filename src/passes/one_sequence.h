// Rewrites a program of ragged requests for one dense sequence that holds the rows of all requests
// one after another: code that needs positions in the whole, such as ranks, needs no second form.
#pragma once

#include <array>
#include <cstddef>

#include "flexc/options.h"
#include "flexc/result.h"
#include "ir/program.h"

namespace flexc::passes {

// Buffers that the rewritten program reads in addition, all i32. Names with a dot cannot occur in
// the language.
struct RequestBuffers {
    const char *of_query, *of_key; // [Q_LEN], [KV_LEN]: the request of a row; of none, kNoQuery or
                                   // kNoKey
    const char* facts;             // [requests, kRequestFacts]
};
inline constexpr RequestBuffers kRequestBuffers = {"requests.of_query", "requests.of_key",
                                                   "requests.facts"};
inline constexpr int kNoQuery = -1, kNoKey = -2;
// The columns of `facts`. The first two are the rows of the sequence at which q_idx and kv_idx are
// 0.
enum RequestFact : int { kFirstQuery, kFirstKey, kQueryCount, kKeyCount, kRequestFacts };
// Names of the sizes for the number of requests and for dims of the longest request's lengths.
inline constexpr const char *kRequestCount = "requests", *kLongestQueries = "requests.Q_LEN",
                            *kLongestKeys = "requests.KV_LEN";

// Rewrites the program for options.one_sequence.
Result<void> make_one_sequence(ir::Program& program, OneSequence lengths);

} // namespace flexc::passes
