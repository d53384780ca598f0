#include "cuda/emit_staged_tables.h"

#include "cuda/policy.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using passes::AddressSplit;
using passes::AlignedTable;
using passes::Place;
using passes::StagedTable;
using Kind = passes::ArgumentSlot::Kind;

namespace {

class StagedTableEmitter {
  public:
    // aligned: null if tiles of keys are not aligned.
    StagedTableEmitter(const SymbolTable& symbols, const StagedTable& table,
                       const AlignedTable* aligned, const ProvideValues& provide)
        : symbols_(symbols), table_(table), aligned_(aligned), provide_(provide),
          node_(symbols.node(table.read)) {
        for (std::size_t i = 0; i < table.split.indices.size(); ++i)
            if (table.is_checked_by_tile(i)) checked_.push_back(&table.split.indices[i]);
    }

    std::string text(int number, int words, int offset) const {
        analysis::Dependence uses;
        for (const AddressSplit::Index& index : table_.split.indices)
            uses = uses | symbols_.mod().dependence[index.first];
        return formatted("template <> struct StagedTable<{}> {{\n"
                         "    using Element = {};\n"
                         "    static constexpr int kDims = {}, kCheckedIndices = {};\n"
                         "    static constexpr int kWords = {}, kOffset = {};\n"
                         "    static constexpr bool kUsesBatch = {}, kUsesHead = {};\n",
                         number, element_type(symbols_.mod().program.buffers[node_.symbol].dtype),
                         node_.operands.size(), checked_.size(), words, offset,
                         uses.has(analysis::Dependence::b), uses.has(analysis::Dependence::h)) +
               users("query", &passes::AddressParts::query) +
               users("key", &passes::AddressParts::key) + count() + row_address() + data() +
               slice() + buffer() + checked("of_query", &passes::AddressParts::query) +
               checked("of_key", &passes::AddressParts::key) + entries_of_checked() + aligned() +
               "};\n";
    }

  private:
    Body body() const { return {symbols_, Place::element, "at."}; }
    std::string extent(const Body& body, std::uint32_t dim) const {
        const ir::Dim& extent = symbols_.mod().program.buffers[node_.symbol].dims[dim];
        return extent.is_constant() ? integer_literal(extent.constant, CType::wide)
                                    : body.argument({Kind::buffer_extent, node_.symbol, dim});
    }

    // For each index that is checked for a whole tile: whether it uses the query (or the key).
    std::string users(std::string_view position, NodeId passes::AddressParts::* part) const {
        std::string which;
        for (std::size_t i = 0; i < checked_.size(); ++i)
            if (checked_[i]->parts.*part != ir::kNoNode) which += formatted("i == {} || ", i);
        return formatted("    static constexpr __device__ bool uses_{}(int i) {{ return {}false; "
                         "}}\n",
                         position, which);
    }
    // Number of entries of a head's slice. If it exceeds the room, the exact number does not
    // matter.
    std::string count() const {
        Body body = this->body();
        std::string product;
        for (const AddressSplit::Index& index : table_.split.indices)
            product = product.empty()
                          ? body.text_as(index.entries, CType::wide)
                          : formatted("flexc_bounded_product({}, {})", product,
                                      unbracketed(body.text_as(index.entries, CType::wide)));
        body.line(formatted("return {};", unbracketed(product)));
        return member_function("long long count(const At& at)", body);
    }
    std::string row_address() const {
        Body body = this->body();
        const NodeId bytes = table_.query_bytes;
        if (bytes != ir::kNoNode) body.compute({bytes});
        body.line(bytes == ir::kNoNode
                      ? "return tables + kOffset;"
                      : formatted("return flexc_shifted(tables + kOffset, {});",
                                  unbracketed(body.text_as(bytes, CType::narrow))));
        return member_function("unsigned row_address(const At& at, unsigned tables)", body);
    }
    std::string data() const {
        Body body = this->body();
        body.line(formatted("return {};", body.argument({Kind::buffer_data, node_.symbol})));
        return member_function("const Element* data(const At& at)", body);
    }
    std::string slice() const {
        Body body = this->body();
        std::vector<NodeId> firsts;
        for (const AddressSplit::Index& index : table_.split.indices)
            firsts.push_back(index.first);
        body.compute(firsts);
        for (std::size_t i = 0; i < firsts.size(); ++i) {
            body.line(
                formatted("first[{}] = {};", i, unbracketed(body.text_as(firsts[i], CType::wide))));
            body.line(formatted(
                "entries[{}] = {};", i,
                unbracketed(body.text_as(table_.split.indices[i].entries, CType::narrow))));
        }
        return member_function(
            "void slice(const At& at, long long (&first)[kDims], int (&entries)[kDims])", body);
    }
    std::string buffer() const {
        Body body = this->body();
        for (std::uint32_t dim = 0; dim < node_.operands.size(); ++dim) {
            body.line(formatted("extents[{}] = {};", dim, extent(body, dim)));
            body.line(formatted("strides[{}] = {};", dim,
                                body.argument({Kind::buffer_stride, node_.symbol, dim})));
        }
        return member_function("void buffer(const At& at, long long (&extents)[kDims], long long "
                               "(&strides)[kDims])",
                               body);
    }
    // For each index that is checked for a whole tile: the part that depends on the query (or key)
    // alone.
    std::string checked(std::string_view called, NodeId passes::AddressParts::* part) const {
        if (checked_.empty()) return "";
        Body body = this->body();
        provide_(body);
        std::vector<NodeId> parts;
        for (const AddressSplit::Index* index : checked_)
            if (index->parts.*part != ir::kNoNode) parts.push_back(index->parts.*part);
        body.compute(parts);
        for (std::size_t i = 0; i < checked_.size(); ++i) {
            const NodeId value = checked_[i]->parts.*part;
            body.line(formatted(
                "values[{}] = {};", i,
                value == ir::kNoNode ? "0" : unbracketed(body.text_as(value, CType::narrow))));
        }
        return member_function(
            formatted("void {}(const At& at, int (&values)[kCheckedIndices])", called), body);
    }
    std::string entries_of_checked() const {
        if (checked_.empty()) return "";
        Body body = this->body();
        for (std::size_t i = 0; i < checked_.size(); ++i)
            body.line(formatted("values[{}] = {};", i,
                                unbracketed(body.text_as(checked_[i]->entries, CType::narrow))));
        return member_function(
            "void entries_of_checked(const At& at, int (&values)[kCheckedIndices])", body);
    }

    // For aligned tiles of keys: the byte offset that the first key gives, and constant steps from
    // there to each later column.
    std::string aligned() const {
        if (aligned_ == nullptr) return "";
        Body body = this->body();
        body.compute({table_.key_bytes});
        body.line(
            formatted("return {};", unbracketed(body.text_as(table_.key_bytes, CType::narrow))));
        std::vector<int> steps, profiles, least, most;
        for (const AlignedTable::Column& column : aligned_->columns) {
            steps.push_back(column.step * kEntryBytes);
            profiles.push_back(column.profile);
        }
        for (std::size_t i = 0; i < table_.split.indices.size(); ++i) {
            if (!table_.is_checked_by_tile(i)) continue;
            least.push_back(aligned_->reaches[i].least);
            most.push_back(aligned_->reaches[i].most);
        }
        std::string text =
            member_function("int key_bytes(const At& at)", body) +
            numbers_function("column_step", steps) + numbers_function("profile", profiles) +
            lane_step() +
            formatted("    static constexpr int kProfiles = {}, kLeastStep = {}, kMostStep = {};\n"
                      "    static constexpr int kRowStep = {};\n"
                      "    static constexpr bool kHasRowStep = {};\n",
                      aligned_->profiles.size(), aligned_->least_step * kEntryBytes,
                      aligned_->most_step * kEntryBytes,
                      aligned_->row_step.value_or(0) * kEntryBytes, aligned_->row_step.has_value());
        if (!checked_.empty())
            text += numbers_function("least_reach", least) + numbers_function("most_reach", most);
        return text;
    }
    // A chain of conditions, as the lane is not known when the kernel is compiled.
    std::string lane_step() const {
        std::string text = "    static __device__ int lane_step(int profile, int lane) {\n";
        for (std::size_t i = 0; i < aligned_->profiles.size(); ++i) {
            const AlignedTable::Profile& steps = aligned_->profiles[i];
            text +=
                formatted("        if (profile == {}) return lane < 2 ? (lane == 0 ? {} : {}) : "
                          "(lane == 2 ? {} : {});\n",
                          i, steps[0] * kEntryBytes, steps[1] * kEntryBytes, steps[2] * kEntryBytes,
                          steps[3] * kEntryBytes);
        }
        return text + "        return 0;\n    }\n";
    }

    static constexpr int kEntryBytes = sizeof(float);

    const SymbolTable& symbols_;
    const StagedTable& table_;
    const AlignedTable* aligned_;
    const ProvideValues& provide_;
    const ir::Node& node_;
    std::vector<const AddressSplit::Index*> checked_;
};

// Adds a function that says whether all of this holds, if there is anything.
void add_assumed(Policy& policy, const SymbolTable& symbols, std::string_view called,
                 const analysis::Assumptions& assumed) {
    if (assumed.empty()) return;
    Body body(symbols, Place::element, "at.");
    std::vector<NodeId> nodes;
    for (const auto& [id, holds] : assumed)
        nodes.push_back(id);
    body.compute(nodes);
    std::string all;
    for (const auto& [id, holds] : assumed)
        all += formatted("{}{}{}", all.empty() ? "" : " && ", holds ? "" : "!", body.text(id));
    body.line(formatted("return {};", all));
    policy.function(formatted("bool {}(const At& at)", called), body);
}

// Byte offsets of the tables from the start of the first one.
std::vector<int> table_offsets(const std::vector<int>& words) {
    std::vector<int> offsets;
    int offset = 0;
    for (const int of_table : words) {
        offsets.push_back(offset);
        offset += static_cast<int>(sizeof(float)) * of_table;
    }
    return offsets;
}

} // namespace

std::string_view name(TableReads reads) {
    switch (reads) {
    case TableReads::memory: return "memory";
    case TableReads::staged: return "staged";
    case TableReads::conditional: return "conditional";
    case TableReads::checked: break;
    }
    return "checked";
}

void set_table_reads(Body& body, TableReads reads, bool guesses_logs) {
    if (reads != TableReads::memory)
        body.read_staged_tables(reads == TableReads::checked, guesses_logs);
}

std::vector<NodeId> staged_roots(const passes::StagedTables& staged) {
    std::vector<NodeId> roots;
    const auto add = [&](NodeId id) {
        if (id != ir::kNoNode) roots.push_back(id);
    };
    const auto add_indices = [&](const AddressSplit& split) {
        for (const AddressSplit::Index& index : split.indices) {
            add(index.first);
            add(index.parts.query);
            add(index.parts.key);
            add(index.parts.rest);
        }
    };
    for (const StagedTable& table : staged.tables) {
        add(table.query_bytes);
        add(table.key_bytes);
        add(table.split.parts.rest);
        add_indices(table.split);
        if (table.where.empty()) continue;
        add(table.split.parts.query);
        add(table.of_any.place);
        add_indices(table.of_any);
        for (const auto& [condition, holds] : table.where)
            add(condition);
    }
    return roots;
}

std::string emit_staged_tables(Policy& policy, const SymbolTable& symbols,
                               const passes::StagedTables& staged, const std::vector<int>& words,
                               const std::vector<AlignedTable>& aligned,
                               const ProvideValues& provide) {
    if (words.empty() || staged.tables.empty()) return "";
    bool have_room = true, are_checked = false;
    analysis::Assumptions of_queries, of_keys; // those of splits
    for (const StagedTable& table : staged.tables) {
        have_room = have_room && table.entries != 0;
        are_checked = are_checked || !table.where.empty();
        for (const auto& assumed : table.where)
            (symbols.mod().dependence[assumed.first].has(analysis::Dependence::q) ? of_queries
                                                                                  : of_keys)
                .push_back(assumed);
        for (std::size_t i = 0; i < table.is_inside.size(); ++i)
            are_checked = are_checked || table.is_checked_by_tile(i);
    }
    policy.constant("kCount", static_cast<int>(staged.tables.size()));
    policy.constant("kHaveRoom", have_room, true);
    policy.constant("kAreChecked", are_checked);
    policy.constant("kAreAligned", !aligned.empty());
    add_assumed(policy, symbols, "query_is_split", of_queries);
    add_assumed(policy, symbols, "key_is_split", of_keys);
    std::string text = "template <int kTable> struct StagedTable;\n";
    const std::vector<int> offsets = table_offsets(words);
    for (std::size_t i = 0; i < staged.tables.size(); ++i)
        text += StagedTableEmitter(symbols, staged.tables[i],
                                   aligned.empty() ? nullptr : &aligned[i], provide)
                    .text(static_cast<int>(i), words[i], offsets[i]);
    return text + "\n";
}

void add_table_conditions(Policy& policy, const SymbolTable& symbols,
                          const passes::TableConditions& conditions, bool addend_scales) {
    policy.constant("kAddendScales", addend_scales);
    if (!conditions.any()) return;
    policy.constant("kHaveConditions", true);
    policy.constant("kKeysHoldFrom", conditions.keys_hold_from);
    add_assumed(policy, symbols, "query_uses", conditions.of_queries);
    add_assumed(policy, symbols, "key_uses", conditions.of_keys);
}

} // namespace flexc::cuda
