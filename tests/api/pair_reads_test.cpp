// What a program reads for each pair of a query and a key: small tables by several stored numbers
// and by conditions, and dense biases that elements use near the diagonal. Random members of both
// classes, by Hopper's kernels, by generic ones and on the CPU.
#include <doctest/doctest.h>

#include <array>
#include <initializer_list>
#include <string>

#include "api/hopper_check.h"
#include "api/random_choices.h"

using namespace flexc;
using flexc::test::Case;

namespace {

std::string number(std::int64_t x) { return std::to_string(x); }

// What both classes have in common: the call, and the mask.
class PairReads : public test::RandomChoices {
  public:
    using RandomChoices::RandomChoices;

  protected:
    // The dims of what is stored for each pair, and the index; of all batch entries or of each.
    struct Stored {
        const char *dims, *index;
    };

    void complete(Case& one) {
        one.text += one_of({"", "", "mask_mod = q_idx + 37 >= kv_idx\n",
                            "mask_mod = abs(q_idx - kv_idx) < 150\n",
                            "mask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2\n"});
        test::draw_call(*this, one);
        constexpr std::array kHeadDims = {64, 128, 96, 192, 64, 128, 40, 256};
        one.head_dim = kHeadDims[static_cast<std::size_t>(below(kHeadDims.size()))];
        if (below(3) == 0) one.kv_len = 8 * (1 + one.kv_len / 8); // rows of whole chunks
        if (one.text.find(" grad") != std::string::npos && below(4) == 0) {
            one.deterministic = true;
            one.runs = 2;
        }
    }
    std::string grad() { return one_of({"", " grad"}); }
    std::string real() { return one_of({"f32", "bf16", "f16"}); }
};

// A number that a head adds for each kind of pair, which one or two stored indices decide, and
// conditions: of one and two bytes, of tables whose extent the call binds, and of more kinds than
// are stored. Some indices are outside of their table.
class KindsOfPairs : public PairReads {
  public:
    using PairReads::PairReads;

    Case next() {
        static constexpr std::array kStored = {Stored{"B, Q_LEN, KV_LEN", "b, q_idx, kv_idx"},
                                               Stored{"Q_LEN, KV_LEN", "q_idx, kv_idx"},
                                               Stored{"KV_LEN, B, Q_LEN", "kv_idx, b, q_idx"}};
        const Stored& stored = kStored[static_cast<std::size_t>(below(kStored.size()))];
        const std::string d = one_of({"d[", "d[", "-1 + d["}) + stored.index + "]",
                          e = std::string("e[") + stored.index + "]";
        constexpr std::array kEntries = {1, 3, 20, 60, 200, 254, 255, 256, 300, 700, 2000, 5000};
        constexpr std::array kFew = {1, 2, 5, 20, 40};
        const int entries = kEntries[static_cast<std::size_t>(below(kEntries.size()))],
                  few = kFew[static_cast<std::size_t>(below(kFew.size()))];
        const std::string t = "t[h, " + d + "]", u = "u[" + e + ", h]",
                          condition = one_of({"q_idx == 0 or kv_idx == 0",
                                              "g[b, q_idx] == g[b, kv_idx]", "d_is_even"});
        const std::string addends[] = {
            t,
            "0.5 * " + t,
            "a[h] * " + t,
            t + " - 2 * " + u,
            t + " * " + u,
            t + " * u[g[b, q_idx], h]",
            "tanh(" + t + ") * 3 + 0.1 * abs(" + t + ")",
            "where(" + condition + ", w[h], " + t + ")",
            "where(" + condition + ", " + t + ", exp(" + u + "))",
            "where(" + d + " >= 0 and " + d + " < 9, " + t + ", w[h] * 2)",
            "t[h, min(max(" + d + ", 0), " + number(entries - 1) + ")] - where(kv_idx > q_idx, " +
                "1.5, 0.0)",
        };
        std::string addend = addends[below(std::size(addends))];
        const std::string even = "d[" + std::string(stored.index) + "] % 2 == 0";
        if (const std::size_t at = addend.find("d_is_even"); at != std::string::npos)
            addend.replace(at, std::string("d_is_even").size(), even);
        Case one;
        const bool is_bound = below(3) == 0;
        if (is_bound) one.dims["N"] = entries;
        one.text = "buffer d: " + one_of({"i32", "i32", "i64", "i16"}) + "[" + stored.dims +
                   "]\nbuffer e: " + one_of({"i32", "u8"}) + "[" + stored.dims +
                   "]\nbuffer g: i32[B, 600]\nbuffer t: " + real() + "[H, " +
                   (is_bound ? "N" : number(entries)) + "]" + grad() + "\nbuffer u: " + real() +
                   "[" + number(few) + ", H]" + grad() + "\nbuffer w: f32[H]" + grad() +
                   "\nbuffer a: f32[H]\nbuffer c: f32[H, KV_LEN]\nbuffer r: f32[H, 900]\n"
                   "score_mod = " +
                   one_of({"score + ", "score + ", "score - ", "tanh(score / 4) * 4 + "}) + "(" +
                   addend + ")" +
                   one_of({"", "", "", " + c[h, kv_idx]", " + a[h] * (kv_idx - q_idx)",
                           " + r[h, min(abs(q_idx - kv_idx), 899)]"}) +
                   "\n";
        complete(one);
        const int step = 1 + below(30), other = 1 + below(30);
        one.integers["d"] = [=](std::int64_t i) { return i * step % 10007 % (entries + 3) - 1; };
        one.integers["e"] = [=](std::int64_t i) { return i * other % 9973 % (few + 1); };
        one.integers["g"] = [=](std::int64_t i) { return i * 7 % 11 % 5; };
        return one;
    }
};

// A dense bias in one branch of choices by the distance: tiles without an element that uses it are
// not copied. Bands that hold everything, or nothing, are among them, and bounds that a call has.
class BiasesInBands : public PairReads {
  public:
    using PairReads::PairReads;

    Case next() {
        static constexpr std::array kStored = {Stored{"H, Q_LEN, KV_LEN", "h, q_idx, kv_idx"},
                                               Stored{"B, H, Q_LEN, KV_LEN", "b, h, q_idx, kv_idx"},
                                               Stored{"Q_LEN, H, KV_LEN", "q_idx, h, kv_idx"},
                                               Stored{"Q_LEN, KV_LEN", "q_idx, kv_idx"}};
        const Stored& stored = kStored[static_cast<std::size_t>(below(kStored.size()))];
        const std::string p = std::string("p[") + stored.index + "]";
        constexpr std::array kWidths = {0, 1, 5, 40, 64, 128, 200, 1000};
        const int width = kWidths[static_cast<std::size_t>(below(kWidths.size()))] * one_sign();
        Case one;
        const bool is_of_call = below(2) == 0;
        if (is_of_call) one.params["w"] = width;
        const std::string w = is_of_call ? "w" : number(width);
        const std::string used = std::array{
            p, p, "0.5 * " + p, "tanh(" + p + ") + " + p}[static_cast<std::size_t>(below(4))];
        const std::string other = one_of({"0.0", "0.5", "a[h]", "c[h, kv_idx]", "o[h, q_idx]"});
        const std::string choices[] = {
            "where(abs(q_idx - kv_idx) < " + w + ", " + used + ", " + other + ")",
            "where(kv_idx - q_idx > " + w + ", " + other + ", " + used + ")",
            "where(kv_idx <= q_idx - " + w + ", " + other + ", " + used + ")",
            "where(q_idx - kv_idx == " + w + ", " + used + ", " + other + ")",
            "where(abs(q_idx + 11 - kv_idx) <= " + w + ", " + used + ", " + other + ")",
            "where(q_idx >= kv_idx, where(q_idx - kv_idx < " + w + ", " + used + ", 1.0), " +
                other + ")"};
        one.text =
            std::string(is_of_call ? "param w: i32\n" : "") + "buffer p: " + real() + "[" +
            stored.dims + "]" + grad() +
            "\nbuffer a: f32[H]\nbuffer c: f32[H, KV_LEN]\nbuffer o: f32[H, Q_LEN]\n"
            "score_mod = " +
            one_of({"score + ", "score + ", "score - ", "score * 0.5 + ", "tanh(score) * 4 + "}) +
            choices[below(std::size(choices))] +
            one_of({"", "", "", " + c[h, kv_idx]", " + a[h] * (kv_idx - q_idx)"}) + "\n";
        complete(one);
        return one;
    }

  private:
    int one_sign() { return below(8) == 0 ? -1 : 1; }
};

void check_on_generic(Case one) {
    one.forward_kernel = ForwardKernel::generic;
    one.backward_kernel = BackwardKernel::generic;
    if (test::below(3) == 0) one.dtype = DType::f32;
    test::check_on_gpu(one);
}

constexpr int kMembers = 12, kMembersOnCpu = 40;

} // namespace

#if FLEXC_WITH_CPU
TEST_CASE("kinds of pairs by several numbers: random members on the CPU") {
    test::check_members<KindsOfPairs>(kMembersOnCpu, test::check_on_cpu);
}

TEST_CASE("dense biases near the diagonal: random members on the CPU") {
    test::check_members<BiasesInBands>(kMembersOnCpu, test::check_on_cpu);
}
#endif

TEST_CASE("generic kinds of pairs by several numbers: random members" * doctest::skip()) {
    test::check_members<KindsOfPairs>(kMembers, check_on_generic);
}

TEST_CASE("generic dense biases near the diagonal: random members" * doctest::skip()) {
    test::check_members<BiasesInBands>(kMembers, check_on_generic);
}

TEST_SUITE_BEGIN("hopper");

TEST_CASE("kinds of pairs by several numbers: random members" * doctest::skip()) {
    test::check_members<KindsOfPairs>(kMembers, test::check_on_hopper);
}

TEST_CASE("dense biases near the diagonal: random members" * doctest::skip()) {
    test::check_members<BiasesInBands>(kMembers, test::check_on_hopper);
}

TEST_SUITE_END();
