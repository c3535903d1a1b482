#include "host/formats/ranks/tensor_parallel.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "host/value/kind.hpp"
#include "host/value/unreadable.hpp"

namespace cbk::ranks {
namespace {

bool is_tensor(const Value& value) {
  return value.is(Value::Kind::tensor);
}

/// How the parts of a tensor make the whole.
enum class Rule { rows, columns, gated_rows, same, unknown };

bool ends_in(std::string_view path, std::initializer_list<std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view ending) {
    if (!path.ends_with(ending)) return false;
    return path.size() == ending.size() || path[path.size() - ending.size() - 1] == '.';
  });
}

Tensor along(const std::vector<const Value*>& of_ranks, int64_t dim) {
  std::vector<Tensor> tensors;
  tensors.reserve(of_ranks.size());
  for (const Value* value : of_ranks) tensors.push_back(value->as_tensor());
  if (dim >= tensors.front().dim()) fail(Errc::format, "it should have {} dims", dim + 1);
  return Tensor::concat(tensors, dim);
}

/// Two blocks of rows in each part: those of the gate, and those of the other projection.
Tensor gated(const std::vector<const Value*>& of_ranks) {
  std::vector<Tensor> halves;
  for (const int64_t half : {0, 1}) {
    for (const Value* value : of_ranks) {
      const Tensor& tensor = value->as_tensor();
      const int64_t rows = tensor.dim() > 0 ? tensor.shape()[0] : 0;
      if (rows % 2 != 0) fail(Errc::format, "a gated weight of {} rows", rows);
      halves.push_back(tensor.slice(0, half * rows / 2, (half + 1) * rows / 2));
    }
  }
  return Tensor::concat(halves, 0);
}

/// Fails unless the elements of all parts are the same.
void check_same(const std::vector<Part>& parts, const std::vector<const Value*>& of_ranks) {
  if (!are_same(parts, of_ranks))
    fail(Errc::unsupported,
         "its elements differ in '{}' and other parts, and there is no rule how they are joined",
         parts[0].name);
}

Value joined(Rule rule, const std::vector<Part>& parts, const std::vector<const Value*>& of_ranks) {
  check_alike(parts, of_ranks);
  switch (rule) {
    case Rule::unknown:
      fail(Errc::unsupported, "there is no rule how the parts of such a weight are joined");
    case Rule::rows:
      return along(of_ranks, 0);
    case Rule::columns:
      return along(of_ranks, 1);
    case Rule::gated_rows:
      return gated(of_ranks);
    case Rule::same:
      break;
  }
  check_same(parts, of_ranks);
  return *of_ranks.front();
}

// --- Meta

/// Whether each part has all rows of the embedding, and some of its columns: LLaMA 1 and 2. The final norm
/// has as many elements as a whole row.
bool has_whole_rows(const Value& root, std::string_view path) {
  const std::string prefix(path.substr(0, path.size() - std::string_view("tok_embeddings.weight").size()));
  const Value* embedding = root.find(path);
  const Value* norm = root.find(prefix + "norm.weight");
  if (embedding == nullptr || norm == nullptr) return true;
  const Shape& shape = embedding->as_tensor().shape();
  return shape.size() < 2 || shape[1] != norm->as_tensor().numel();
}

Rule meta_rule(const Value& root, std::string_view path) {
  if (ends_in(path, {"tok_embeddings.weight"}))
    return has_whole_rows(root, path) ? Rule::columns : Rule::rows;
  if (ends_in(path, {"attention.wo.weight", "feed_forward.w2.weight"})) return Rule::columns;
  const bool is_cut = ends_in(path, {"attention.wq.weight", "attention.wk.weight", "attention.wv.weight",
                                     "feed_forward.w1.weight", "feed_forward.w3.weight", "output.weight"});
  return is_cut ? Rule::rows : Rule::same;
}

// --- Megatron

constexpr std::string_view layers = "layers.";

Rule megatron_rule(std::string_view path, const std::function<bool()>& is_gated) {
  if (ends_in(path, {"linear_fc1.weight", "linear_fc1.bias", "dense_h_to_4h.weight", "dense_h_to_4h.bias"}))
    return is_gated() ? Rule::gated_rows : Rule::rows;
  if (ends_in(path, {"linear_proj.weight", "linear_fc2.weight", "self_attention.dense.weight",
                     "attention.dense.weight", "inter_attention.dense.weight", "dense_4h_to_h.weight"}))
    return Rule::columns;
  const bool is_cut =
      ends_in(path, {"linear_qkv.weight", "linear_qkv.bias", "linear_q.weight", "linear_kv.weight",
                     "query_key_value.weight", "query_key_value.bias", "query.weight", "query.bias",
                     "key_value.weight", "key_value.bias", "word_embeddings.weight", "output_layer.weight",
                     "output_layer.bias", "lm_head.weight", "lm_head.bias"});
  if (is_cut) return Rule::rows;
  const bool is_same =
      ends_in(path, {"linear_proj.bias", "linear_fc2.bias", "dense.bias", "dense_4h_to_h.bias",
                     "router.weight", "router.expert_bias", "position_embeddings.weight",
                     "tokentype_embeddings.weight", "inv_freq", "_extra_state"});
  const bool is_norm =
      path.find("norm") != std::string_view::npos && path.find("mixer.") == std::string_view::npos;
  return is_same || is_norm ? Rule::same : Rule::unknown;
}

/// Whether the first projection of a feed-forward block is two: it has twice the rows that the second has
/// columns. `path` is that of its weight or bias.
bool is_gated(const Value& model, const std::string& path) {
  const size_t end = path.rfind('.');
  std::string second = path.substr(0, end);
  for (const auto& [one, other] : {std::pair{"linear_fc1", "linear_fc2"}, {"dense_h_to_4h", "dense_4h_to_h"}})
    if (const size_t at = second.rfind(one); at != std::string::npos)
      second.replace(at, std::string_view(one).size(), other);
  const auto rows_of = [&](const std::string& name, size_t dim) -> int64_t {
    const Value* at = &model;
    std::string_view rest = name;
    while (at != nullptr && at->is(Value::Kind::dict)) {
      if (const Value* found = at->find(rest))
        return found->is(Value::Kind::tensor) && found->as_tensor().dim() > static_cast<int64_t>(dim)
                   ? found->as_tensor().shape()[dim]
                   : 0;
      const size_t dot = rest.find('.');
      if (dot == std::string_view::npos) return 0;
      at = at->find(rest.substr(0, dot));
      rest.remove_prefix(dot + 1);
    }
    return 0;
  };
  const int64_t columns = rows_of(second + ".weight", 1);
  if (columns == 0)
    fail(Errc::unsupported, "there is no {} beside it, which shows whether it is gated",
         quote(second + ".weight"));
  return rows_of(path, 0) == 2 * columns;
}

/// Before version 2, the rows of queries, keys and values are in another order in each part.
void check_version(const std::vector<Part>& parts) {
  const Value* version = parts.front().root.find("checkpoint_version");
  const double number = version != nullptr && version->is(Value::Kind::real) ? version->as_double()
                        : version != nullptr && version->is(Value::Kind::integer)
                            ? static_cast<double>(version->as_int())
                            : 0;
  if (number < 2 && parts.size() > 1)
    fail(Errc::unsupported, "'{}' is of checkpoint_version {}: parts of versions before 2 are not joined",
         parts[0].name, number);
}

/// A number that the arguments of the run state, if they do.
std::optional<int64_t> stated(const Part& part, std::string_view name) {
  const Value* args = part.root.find("args");
  const Value* value = args == nullptr ? nullptr : insides(*args).find(name);
  return value != nullptr && value->is(Value::Kind::integer) ? std::optional(value->as_int()) : std::nullopt;
}

/// Fails if the run had another number of ranks than there are files.
void check_ranks(const std::vector<std::vector<Part>>& stages) {
  const Part& first = stages.front().front();
  const auto found = static_cast<int64_t>(stages.front().size());
  const auto found_stages = static_cast<int64_t>(stages.size());
  const int64_t ranks = stated(first, "tensor_model_parallel_size").value_or(found);
  const int64_t pipeline = stated(first, "pipeline_model_parallel_size").value_or(found_stages);
  if (ranks != found || pipeline != found_stages)
    fail(Errc::format,
         "the run had {} tensor-parallel ranks in {} pipeline stages, and the folder has the files of {} in "
         "{}",
         ranks, pipeline, found, found_stages);
}

/// One pipeline stage, whole.
Value join_stage(std::vector<Part>& parts) {
  for (Part& part : parts) {
    if (const Value* optimizer = part.root.find("optimizer"); optimizer != nullptr && !optimizer->is_none())
      part.root.as_dict().set("optimizer",
                              unreadable("the optimizer's states of Megatron's ranks are not joined"));
    for (const char* name : {"model0", "model1"})
      if (part.root.find(name) != nullptr)
        fail(Errc::unsupported, "'{}' has a virtual pipeline ('{}'), which is not joined", part.name, name);
  }
  check_version(parts);
  const Value* model = parts.front().root.find("model");
  if (model == nullptr || !model->is(Value::Kind::dict))
    fail(Errc::format, "'{}' has no 'model'", parts[0].name);
  return merged(parts, is_tensor, [&](const std::string& path, const std::vector<const Value*>& of_ranks) {
    if (!path.starts_with("model.") || path.ends_with("_extra_state")) return *of_ranks.front();
    const std::string name = path.substr(6);
    if (parts.size() == 1) return *of_ranks.front();
    return joined(megatron_rule(name, [&] { return is_gated(*model, name); }), parts, of_ranks);
  });
}

/// Where the number of a layer is in the last part of a path.
struct LayerNumber {
  std::string before;  // the path up to the number
  int64_t number = 0;
  size_t begin = 0;  // in the path
  size_t end = 0;
};

/// `from`: where the last part begins. None: it has no number of a layer.
std::optional<LayerNumber> layer_in(std::string_view path, size_t from) {
  for (size_t at = path.find(layers); at != std::string_view::npos; at = path.find(layers, at + 1)) {
    const size_t begin = at + layers.size();
    if (begin < from || (at > 0 && path[at - 1] != '.')) continue;
    int64_t number = 0;
    const auto [stop, error] = std::from_chars(path.data() + begin, path.data() + path.size(), number);
    if (error != std::errc{}) continue;
    return LayerNumber{std::string(path.substr(0, begin)), number, begin,
                       static_cast<size_t>(stop - path.data())};
  }
  return std::nullopt;
}

using Layers = std::map<std::string, std::set<int64_t>>;  // numbers, by the path before them

void add_layers(const Value& model, const std::string& prefix, Layers& out) {
  for (const auto& [key, value] : model.as_dict().entries()) {
    const std::string path = prefix + key_text(key);
    if (const auto layer = layer_in(path, prefix.size())) out[layer->before].insert(layer->number);
    if (value.is(Value::Kind::dict)) add_layers(value, path + ".", out);
  }
}

/// How much is added to the numbers of a stage, whose layers are counted from 0, or in the whole model.
using Shifts = std::map<std::string, int64_t>;

Shifts shifts_of(const Layers& stage, const Layers& before) {
  Shifts out;
  for (const auto& [path, numbers] : stage) {
    const auto known = before.find(path);
    const int64_t next = known == before.end() ? 0 : *known->second.rbegin() + 1;
    const int64_t first = *numbers.begin();
    if (next > 0 && first != 0 && first != next)
      fail(Errc::unsupported, "layers {} of a pipeline stage begin with {}, after {} of stages before",
           quote(path), first, next);
    out[path] = first == 0 ? next : 0;
  }
  return out;
}

/// The model of a stage added to those before it.
void add_stage(Dict& into, const Value& model, const std::string& prefix, const Shifts& shifts) {
  for (const auto& [key, value] : model.as_dict().entries()) {
    const std::string path = prefix + key_text(key);
    std::string name = key_text(key);
    if (const auto layer = layer_in(path, prefix.size()))
      name = fmt::format("{}{}{}", path.substr(prefix.size(), layer->begin - prefix.size()),
                         layer->number + shifts.at(layer->before), path.substr(layer->end));
    const Value* known = into.find(std::string_view(name));
    if (value.is(Value::Kind::dict)) {
      Value made = known != nullptr && known->is(Value::Kind::dict) ? Value(*known) : Value::dict();
      add_stage(made.as_dict(), value, path + ".", shifts);
      into.set(name, made);
    } else if (known == nullptr) {
      into.set(name, value);
    } else if (is_tensor(value) && is_tensor(*known)) {
      const bool is_same = value.as_tensor().shape() == known->as_tensor().shape() &&
                           value.as_tensor().to_bytes() == known->as_tensor().to_bytes();
      if (!is_same) fail(Errc::format, "two pipeline stages have another {}", quote(path));
    }
  }
}

}  // namespace

void check_experts(const Part& part) {
  const int64_t ranks = stated(part, "expert_model_parallel_size").value_or(1);
  if (ranks > 1)
    fail(Errc::unsupported,
         "the run had {} ranks of experts (expert_model_parallel_size), and their files are not joined",
         ranks);
}

Value join_meta(const std::vector<Part>& parts) {
  const Value& root = parts.front().root;
  const Value* norm = root.find("norm.weight");
  return merged(parts, is_tensor, [&](const std::string& path, const std::vector<const Value*>& of_ranks) {
    Value made = joined(parts.size() == 1 ? Rule::same : meta_rule(root, path), parts, of_ranks);
    const bool is_square =
        ends_in(path, {"attention.wo.weight"}) && norm != nullptr && norm->is(Value::Kind::tensor);
    if (is_square && made.as_tensor().shape().back() != norm->as_tensor().numel())
      fail(Errc::format,
           "it has {} columns in {} files, and the model has {}: are the files of all ranks there?",
           made.as_tensor().shape().back(), parts.size(), norm->as_tensor().numel());
    return made;
  });
}

Value join_megatron(std::vector<std::vector<Part>> stages) {
  check_ranks(stages);
  Value out;
  const Value model = Value::dict();
  Layers known;
  for (std::vector<Part>& parts : stages) {
    const Value stage = join_stage(parts);
    if (out.is_none()) out = stage;
    Layers own;
    add_layers(*stage.find("model"), "", own);
    const Shifts shifts = shifts_of(own, known);
    for (const auto& [path, numbers] : own)
      for (const int64_t number : numbers) known[path].insert(number + shifts.at(path));
    add_stage(model.as_dict(), *stage.find("model"), "", shifts);
  }
  out.as_dict().set("model", model);
  return out;
}

}  // namespace cbk::ranks
