#include <algorithm>
#include <array>
#include <cctype>

#include "fuzz.h"

namespace flexc::fuzz {

namespace {

using Words = std::vector<std::string>;

constexpr auto kNumbers = std::to_array<std::string_view>({"0",
                                                           "1",
                                                           "-1",
                                                           "2",
                                                           "7",
                                                           "64",
                                                           "255",
                                                           "65536",
                                                           "2147483647",
                                                           "2147483648",
                                                           "-2147483648",
                                                           "4294967296",
                                                           "9007199254740992",
                                                           "9007199254740993",
                                                           "9223372036854775807",
                                                           "-9223372036854775807",
                                                           "9223372036854775808",
                                                           "18446744073709551616",
                                                           "1e18",
                                                           "0.1",
                                                           "-0.0",
                                                           "1e10",
                                                           "-3.4028234e38",
                                                           "1e38",
                                                           "3.5e38",
                                                           "1e308",
                                                           "1e309",
                                                           "1e-45",
                                                           "1e-320",
                                                           "nan",
                                                           "inf",
                                                           "-inf",
                                                           "0x7fffffffffffffff"});

// Names and calls of the language, beside those that the corpus has.
constexpr auto kValues = std::to_array<std::string_view>({"score",
                                                          "b",
                                                          "h",
                                                          "h_kv",
                                                          "q_idx",
                                                          "kv_idx",
                                                          "B",
                                                          "H",
                                                          "H_KV",
                                                          "Q_LEN",
                                                          "KV_LEN",
                                                          "D",
                                                          "DV",
                                                          "pi",
                                                          "inf",
                                                          "true",
                                                          "false",
                                                          "(q_idx - kv_idx)",
                                                          "(score * 0.5)",
                                                          "(q_idx >= kv_idx)"});
constexpr auto kUnary = std::to_array<std::string_view>(
    {"-",     "~",        "not ", "abs",      "sign",      "floor", "ceil", "round", "trunc",
     "float", "int",      "bool", "exp",      "exp2",      "expm1", "log",  "log2",  "log1p",
     "sqrt",  "rsqrt",    "sin",  "cos",      "tan",       "tanh",  "relu", "silu",  "sigmoid",
     "gelu",  "softplus", "erf",  "math.exp", "torch.abs", ""});
constexpr auto kBinary = std::to_array<std::string_view>(
    {" + ", " - ",  " * ",  " / ",  " // ",  " % ",  " ** ",
     " & ", " | ",  " ^ ",  " << ", " >> ",  " < ",  " <= ",
     " > ", " >= ", " == ", " != ", " and ", " or ", " if q_idx < kv_idx else ",
     ", "});
constexpr auto kOpenCalls = std::to_array<std::string_view>(
    {"where(q_idx > kv_idx, ", "max(", "min(", "pow(", "clamp(score, ", "fma(score, ", "causal(",
     "softcap(", "alibi("});

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Names and numbers, runs of spaces, ends of lines, and marks of one or two characters.
Words words_of(std::string_view text) {
    constexpr auto kPairs = std::to_array<std::string_view>(
        {"**", "//", "<<", ">>", "<=", ">=", "==", "!=", "+=", "-=", "*=", "/=", "&&", "||"});
    Words words;
    while (!text.empty()) {
        std::size_t size = 1;
        if (is_word(text[0])) {
            while (size < text.size() && (is_word(text[size]) || text[size] == '.'))
                ++size;
        } else if (text[0] == ' ') {
            while (size < text.size() && text[size] == ' ')
                ++size;
        } else if (std::ranges::find(kPairs, text.substr(0, 2)) != kPairs.end()) {
            size = 2;
        }
        words.emplace_back(text.substr(0, size));
        text.remove_prefix(size);
    }
    return words;
}

std::string joined(const Words& words) {
    std::string text;
    for (const std::string& word : words)
        text += word;
    return text;
}

class Change {
  public:
    Change(Words& words, const Corpus& corpus, Random& random)
        : words_(words), corpus_(corpus), random_(random) {}

    void apply() {
        if (words_.empty()) words_.emplace_back("score");
        switch (random_.integer(0, 15)) {
        case 0: erase(); return;
        case 1: return insert(place(), copy(words_));
        case 2: return insert(place(), copy(words_of(random_.pick(corpus_))));
        case 3: words_[value()] = hostile_number(random_); return;
        case 4:
        case 5: words_[value()] = expression(static_cast<int>(random_.integer(0, 3))); return;
        case 6:
            if (const Words other = words_of(random_.pick(corpus_)); !other.empty())
                words_[word()] = random_.pick(other);
            return;
        case 7: std::swap(words_[word()], words_[word()]); return;
        case 8: words_[value()] = words_[value()]; return;
        case 9: return repeat();
        case 10: return wrap();
        case 11: return add_lines();
        case 12: operators(); return;
        case 13: words_.resize(place()); return;
        default: return add_lines();
        }
    }

  private:
    std::size_t place() {
        return static_cast<std::size_t>(
            random_.integer(0, static_cast<std::int64_t>(words_.size())));
    }
    std::size_t word() { return std::min(place(), words_.size() - 1); }
    // A name or a number, if a few tries find one.
    std::size_t value() {
        std::size_t at = word();
        for (int i = 0; i < 20 && !is_word(words_[at][0]); ++i)
            at = word();
        return at;
    }

    std::size_t run_length() {
        return static_cast<std::size_t>(random_.integer(1, random_.chance(80) ? 8 : 60));
    }
    Words copy(const Words& from) {
        const auto begin =
            static_cast<std::size_t>(random_.integer(0, static_cast<std::int64_t>(from.size())));
        const std::size_t end = std::min(from.size(), begin + run_length());
        return {from.begin() + static_cast<std::ptrdiff_t>(begin),
                from.begin() + static_cast<std::ptrdiff_t>(end)};
    }
    void insert(std::size_t at, const Words& what) {
        words_.insert(words_.begin() + static_cast<std::ptrdiff_t>(at), what.begin(), what.end());
    }
    void erase() {
        const std::size_t begin = word(), end = std::min(words_.size(), begin + run_length());
        words_.erase(words_.begin() + static_cast<std::ptrdiff_t>(begin),
                     words_.begin() + static_cast<std::ptrdiff_t>(end));
    }

    // Something up to many times; what is deep or long for a pass shows here.
    std::size_t times() {
        return static_cast<std::size_t>(
            random_.integer(1, std::int64_t{1} << random_.integer(0, 9)));
    }
    void repeat() {
        const std::size_t at = place();
        const Words what = copy(words_);
        std::size_t bytes = 0;
        for (const std::string& each : what)
            bytes += each.size();
        const std::size_t count = std::min(times(), kMostBytes / (bytes + 1));
        Words all;
        for (std::size_t i = 0; i < count; ++i)
            all.insert(all.end(), what.begin(), what.end());
        insert(at, all);
    }
    void wrap() {
        const std::size_t at = value();
        const std::string_view outer = random_.pick(kUnary);
        std::string open, close;
        for (std::size_t count = std::min<std::size_t>(times(), 300); count > 0; --count) {
            open += outer;
            open += '(';
            close += ')';
        }
        words_[at] = open + words_[at] + close;
    }

    // A small number plus `by`, so that lines that repeat do not say the same.
    static std::string higher(std::string word, std::size_t by) {
        const bool is_number =
            word.size() <= 4 && word.find_first_not_of("0123456789") == std::string::npos;
        return is_number ? std::to_string(std::stoul(word) + by) : word;
    }

    // The first word of the line that `at` is in.
    static std::size_t line_start(const Words& words, std::size_t at) {
        while (at > 0 && words[at - 1] != "\n")
            --at;
        return at;
    }
    static Words line_at(const Words& words, std::size_t start) {
        const auto begin = words.begin() + static_cast<std::ptrdiff_t>(start);
        Words line(begin, std::find(begin, words.end(), "\n"));
        line.emplace_back("\n");
        return line;
    }

    // One of the corpus anywhere, or, again and again, one of the text below itself: so values come
    // to be used by many others.
    void add_lines() {
        const std::size_t where = line_start(words_, place());
        if (random_.chance(40)) {
            const Words other = words_of(random_.pick(corpus_));
            const auto at = static_cast<std::size_t>(
                random_.integer(0, static_cast<std::int64_t>(other.size())));
            return insert(where, line_at(other, line_start(other, at)));
        }
        const Words line = line_at(words_, where);
        const std::size_t most = kMostBytes / joined(line).size();
        const std::size_t count = std::min(times(), most);
        const bool counts = random_.chance(50);
        Words all;
        for (std::size_t i = 1; i <= count; ++i)
            for (const std::string& word : line)
                all.push_back(counts ? higher(word, i) : word);
        insert(std::min(where + line.size(), words_.size()), all);
    }

    void operators() {
        const std::size_t at = value();
        words_[at] = "(" + words_[at] + std::string(random_.pick(kBinary)) +
                     expression(static_cast<int>(random_.integer(0, 2))) + ")";
    }

    std::string leaf() {
        if (random_.chance(25)) return std::string(hostile_number(random_));
        if (random_.chance(40)) return words_[value()];
        return std::string(random_.pick(kValues));
    }
    std::string expression(int depth) {
        if (depth == 0) return leaf();
        const std::string inner = expression(depth - 1);
        switch (random_.integer(0, 3)) {
        case 0: return std::string(random_.pick(kUnary)) + "(" + inner + ")";
        case 1:
            return std::string(random_.pick(kOpenCalls)) + inner + ", " + expression(depth - 1) +
                   ")";
        case 2: return words_[value()] + "[" + inner + "]";
        default: return "(" + inner + std::string(random_.pick(kBinary)) + leaf() + ")";
        }
    }

    Words& words_;
    const Corpus& corpus_;
    Random& random_;
};

} // namespace

std::string_view hostile_number(Random& random) { return random.pick(kNumbers); }

std::string mutate_text(const std::string& input, const Corpus& corpus, Random& random) {
    if (random.chance(7)) return mutate_bytes(input, corpus, random);
    Words words = words_of(input);
    for (std::int64_t changes = random.integer(1, random.chance(50) ? 1 : 5); changes > 0;
         --changes)
        Change(words, corpus, random).apply();
    std::string text = joined(words);
    if (text.size() > kMostBytes) text.resize(kMostBytes);
    return text;
}

} // namespace flexc::fuzz
