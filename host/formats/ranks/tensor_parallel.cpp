#include "host/formats/ranks/tensor_parallel.hpp"

#include <algorithm>
#include <charconv>

#include "host/value/kind.hpp"
#include "host/value/unreadable.hpp"

namespace cbk::ranks {
namespace {

constexpr uint64_t largest_compared = 64ULL << 20;  // bytes of a part without a rule

bool is_tensor(const Value& value) {
  return value.is(Value::Kind::tensor);
}

/// How the parts of a tensor make the whole.
enum class Rule { rows, columns, gated_rows, same };

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
  check_alike(parts, of_ranks);
  const Tensor& first = of_ranks.front()->as_tensor();
  if (first.nbytes() > largest_compared)
    fail(Errc::unsupported, "it has {} in each part, and there is no rule how they are joined",
         format_size(first.nbytes()));
  const Bytes bytes = first.to_bytes();
  for (size_t i = 1; i < of_ranks.size(); ++i)
    if (of_ranks[i]->as_tensor().to_bytes() != bytes)
      fail(Errc::unsupported,
           "its elements differ in '{}' and '{}', and there is no rule how they are joined", parts[0].name,
           parts[i].name);
}

Value joined(Rule rule, const std::vector<Part>& parts, const std::vector<const Value*>& of_ranks) {
  switch (rule) {
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

Rule meta_rule(std::string_view path, bool has_whole_rows) {
  if (ends_in(path, {"tok_embeddings.weight"})) return has_whole_rows ? Rule::columns : Rule::rows;
  if (ends_in(path, {"attention.wo.weight", "feed_forward.w2.weight"})) return Rule::columns;
  const bool is_cut = ends_in(path, {"attention.wq.weight", "attention.wk.weight", "attention.wv.weight",
                                     "feed_forward.w1.weight", "feed_forward.w3.weight", "output.weight"});
  return is_cut ? Rule::rows : Rule::same;
}

/// Whether each part has all rows of the embedding, and some of its columns: LLaMA 1 and 2. The final norm
/// has as many elements as a whole row.
bool has_whole_rows(const Value& root) {
  const Value* embedding = root.find("tok_embeddings.weight");
  const Value* norm = root.find("norm.weight");
  if (embedding == nullptr || norm == nullptr) return true;
  const Shape& shape = embedding->as_tensor().shape();
  return shape.size() < 2 || shape[1] != norm->as_tensor().numel();
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
                     "output_layer.bias", "lm_head.weight"});
  return is_cut ? Rule::rows : Rule::same;
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
  const Value* model = parts.front().root.find("model");
  if (model == nullptr || !model->is(Value::Kind::dict))
    fail(Errc::format, "'{}' has no 'model'", parts[0].name);
  return merged(parts, is_tensor, [&](const std::string& path, const std::vector<const Value*>& of_ranks) {
    if (!path.starts_with("model.")) return *of_ranks.front();
    const std::string name = path.substr(6);
    return joined(megatron_rule(name, [&] { return is_gated(*model, name); }), parts, of_ranks);
  });
}

/// The number after "layers." in a name; none: the name is of no layer.
std::optional<int64_t> layer_of(std::string_view name, size_t& begin, size_t& end) {
  begin = name.find(layers);
  if (begin == std::string_view::npos || (begin > 0 && name[begin - 1] != '.')) return std::nullopt;
  begin += layers.size();
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(name.data() + begin, name.data() + name.size(), number);
  if (error != std::errc{}) return std::nullopt;
  end = static_cast<size_t>(stop - name.data());
  return number;
}

/// The model of a later stage added to that of the first, with layers counted on; nested dicts have equal
/// names in both.
int64_t add_stage(Dict& into, const Dict& model, int64_t first_layer, bool is_below_layers) {
  int64_t count = 0;
  for (const auto& [key, value] : model.entries()) {
    const std::string name = key_text(key);
    size_t begin = 0;
    size_t end = 0;
    std::optional<int64_t> layer = layer_of(name, begin, end);
    std::string renamed = name;
    if (is_below_layers) {
      int64_t number = 0;
      if (std::from_chars(name.data(), name.data() + name.size(), number).ec == std::errc{}) {
        layer = number;
        renamed = std::to_string(number + first_layer);
      }
    } else if (layer) {
      renamed = fmt::format("{}{}{}", name.substr(0, begin), *layer + first_layer, name.substr(end));
    }
    if (layer) count = std::max(count, *layer + 1);
    const Value* known = into.find(std::string_view(renamed));
    if (known != nullptr && known->is(Value::Kind::dict) && value.is(Value::Kind::dict)) {
      count = std::max(count, add_stage(known->as_dict(), value.as_dict(), first_layer, name == "layers"));
    } else if (known == nullptr) {
      into.set(renamed, value);
      if (value.is(Value::Kind::dict)) {
        Value made = Value::dict();
        count = std::max(count, add_stage(made.as_dict(), value.as_dict(), first_layer, name == "layers"));
        into.set(renamed, made);
      }
    }
  }
  return count;
}

}  // namespace

Value join_meta(const std::vector<Part>& parts) {
  const bool whole_rows = has_whole_rows(parts.front().root);
  return merged(parts, is_tensor, [&](const std::string& path, const std::vector<const Value*>& of_ranks) {
    return joined(meta_rule(path, whole_rows), parts, of_ranks);
  });
}

Value join_megatron(std::vector<std::vector<Part>> stages) {
  Value out;
  Value model = Value::dict();
  int64_t first_layer = 0;
  for (std::vector<Part>& parts : stages) {
    const Value stage = join_stage(parts);
    if (out.is_none()) out = stage;
    first_layer += add_stage(model.as_dict(), stage.find("model")->as_dict(), first_layer, false);
  }
  out.as_dict().set("model", model);
  return out;
}

}  // namespace cbk::ranks
