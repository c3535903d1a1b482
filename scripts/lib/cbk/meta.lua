---@meta cbk
-- The native surface of cbk, as annotations: editors complete from it and `:help` prints it. Nothing here runs.
--
-- Rules that hold everywhere:
-- * A position in a Lua table or list counts from 1; a dim or a slice bound of a tensor counts from 0 (negative: from the end).
-- * Indexing a Dict or a List is always data (`cfg.keys` is the field "keys", nil where there is none); what one does with them are
--   functions of `cbk`. `cbk.items` walks over them; `pairs` and `ipairs` are Lua's own.
-- * Any other name that does not exist, such as `cbk.opne` or `ckpt["lm_haed.weight"]`, is an error that names what looks like it.
-- * Errors are raised: tables { code = "shape", message = "…", where = "script.lua:12" } with a __tostring. An unknown option names
--   the known ones. Codes: usage key value shape dtype format unsupported refused exists io no_space interrupted internal memory.
-- * Where a tree takes a Lua table, positions 1 to n make a list, names make a dict in sorted order; an empty table is refused
--   (`cbk.list()` and `cbk.dict()` say which). Numbers without a fraction become ints, others floats.
-- * The same list, dict or tensor is the same Lua value each time, so `==` is identity and it works as a table key.
local cbk = {}

---What a JSON or YAML null, or Python's None, loads as. `cbk.null == cbk.null`; it is true in a condition, so compare.
cbk.null = nil

---@alias Scalar boolean|number|string|ffi.cdata*|Value|null

---@class Value  A scalar that Lua has no type for, or one that remembers its kind and spelling (`cbk.raw`).
---@field kind "none"|"bool"|"int"|"float"|"complex"|"str"|"bytes"|"bytearray"|"object"
---@field type string   objects: the class, such as "torch.dtype"
---@field repr string   objects: such as "torch.bfloat16"
---@field state any     objects: their attributes as a Dict
---@field value any     the plain Lua value where there is one (complex: {re, im}; bytes: a Lua string)

---@class Dict  An ordered map: `d.key`, `d["a.b"]`, `d[0]` (an int key), `d.key = v`, `d.key = nil`; `cbk.count(d)` entries. `#d` is as for
---a Lua table: it counts the keys 1, 2, … It has no methods, as all names in it are data: `cbk.items(d)`, `cbk.keys(d)` and other functions work on it.
---@field [any] any
---@class List  `l[1]`, `#l`, `l[#l + 1] = v`, `l[#l] = nil`; also tuples, sets and deques (`cbk.kind`). Tuples do not change.
---@field [integer] any

---@class Tensor  A lazy tensor: an expression over bytes on disk. Nothing is read before `tolist`, `item`, `stats`, `ptr`, or a commit.
---`t[1]` is its first row, a tensor; of a tensor with one dim it is the element, which is read. `#t` rows; other positions are errors.
---@field dtype string          "float32", "bfloat16", …
---@field role string           "tensor" | "parameter" | "ndarray" | "np_scalar"
---@field requires_grad boolean
local Tensor = {}

---Prints as "[2, 3]".
---@return integer[]
function Tensor:shape() end
---How many elements it has.
---@return integer
function Tensor:numel() end
---How many dims it has.
---@return integer
function Tensor:dim() end
---Iterates over the rows, as `t[i]` gives them: `for i, row in t:rows() do`. To read many elements, `tolist` is faster.
---@return fun(): integer, Tensor|number
function Tensor:rows() end
---Bytes of all elements.
---@return integer
function Tensor:nbytes() end
---The same elements in another shape.
---@param shape integer[]  one extent may be -1
---@return Tensor
function Tensor:reshape(shape) end
---The dims in another order.
---@param dims integer[]  a permutation of the dims, from 0
---@return Tensor
function Tensor:permute(dims) end
---Two dims in each other's place.
---@return Tensor
function Tensor:transpose(dim_a, dim_b) end
---Half open, clamped, as in Python; `step` may not be 0 (negative steps are refused: use `flip`).
---@return Tensor
function Tensor:slice(dim, start, stop, step) end
---One index along `dim`, which disappears.
---@return Tensor
function Tensor:select(dim, index) end
---Repeats dims of extent 1 without copying.
---@return Tensor
function Tensor:expand(shape) end
---The rows along a dim in reverse order.
---@return Tensor
function Tensor:flip(dim) end
---Rows in the given order.
---@param indices integer[]  from 0
---@return Tensor
function Tensor:index_select(dim, indices) end
---Parts of `size` (the last may be smaller), or of the sizes in a list.
---@param size integer|integer[]
---@return Tensor[]
function Tensor:split(size, dim) end
---The elements in another dtype, rounded to the nearest.
---@param dtype string
---@return Tensor
function Tensor:to(dtype) end
---The bits of the elements as another dtype of their size (default: unsigned integers: a bfloat16 becomes a uint16). Complex elements
---have none.
---@param dtype? string   "float8_e8m0fnu" makes powers of two of the scales of MXFP4
---@return Tensor
function Tensor:bits(dtype) end
---Codes in the bits of 8, 16 or 32-bit integers, as float32. Along `dim` (default: the last one) an element becomes as many numbers as it
---has codes. `places` are the codes of an element in the order of the result, 0 being the one with the lowest bits (default: in that
---order), `values` the numbers that the codes mean (default: themselves).
---@param bits integer   of a code: 1, 2 or 4
---@param options? { dim: integer, places: integer[], values: number[] }
---@return Tensor
function Tensor:unpack(bits, options) end
---x · factor + term, computed in float32 (float64 in float64). `t * 2`, `t + 1`, `t / 2`, `-t` say the same. Several operations on
---narrower floats are rounded once, at the end: `t * 3 + 1` in bfloat16 is the nearest bfloat16. `:to` rounds what precedes it.
---Integers are exact with a whole factor and term, else computed in float64; a result that the dtype cannot hold becomes the nearest
---that it can.
---@return Tensor
function Tensor:affine(factor, term) end
---The same elements with `value` in place of NaN.
---@return Tensor
function Tensor:replace_nan(value) end
---The same elements, checked when they are read or streamed: one that is NaN or infinite is a `value` error that begins with `what`,
---and an output that contains it does not appear.
---@param what string
---@return Tensor
function Tensor:require_finite(what) end
---Computed and rounded as `affine` does it.
---@param other Tensor  same shape and dtype; also `a + b`, and `a * b` element by element
---@return Tensor
function Tensor:add(other) end
---The product of two matrices.
---@return Tensor
function Tensor:matmul(other) end
---The elements as nested lists (a number for 0 dims). int64 beyond 2^53 come as int64 cdata. Refuses more than 2^24 elements.
---@return any
function Tensor:tolist() end
---The one element.
function Tensor:item() end
---{ min, max, mean, std, norm, nan, inf, zeros, subnormal (counts), numel }: one pass in blocks, on all cores, or two where many elements are alike. The first five are those
---of the finite elements, nil if there are none. std is that of the population (divided by n), as NumPy's. Integers are exact: min and
---max beyond 2^53 come as int64 or uint64 cdata. `quantiles` are as NumPy's, within 1 % of the value, and with a share within 1.6 %,
---for float32 and float64 of more than 4,096 elements and exact for others; `histogram` is { edges, counts }, with at most `bins` bins of about one width and exact counts.
---@param options? { quantiles: number[], bins: integer }
---@return table
function Tensor:stats(options) end
---A matrix as at most `rows` times `columns` blocks (64 each by default), in one pass: { rows, columns, mean, rms, min, max, nan, inf }. The
---lists have a number for each block, row by row; the first four leave out values that are not finite, and are NaN if none is left.
---@param options? { rows: integer, columns: integer }
---@return table
function Tensor:grid(options) end
---Lower-case hex of the little-endian C-order bytes; refuses more than 16 MiB.
---@return string
function Tensor:hex() end
---SHA-256 of those bytes, read in blocks.
---@return string
function Tensor:sha256() end
---A uint64 that tensors share if they have the same elements of one dtype in any order, read in blocks. That of a concatenation is
---the sum of its parts. For finding candidates; `compare` says whether they are the same.
---@return ffi.cdata*
function Tensor:content() end
---A typed FFI pointer to the elements in C order, valid while the second result is referenced. float16 and bfloat16 come as
---the bits in uint16_t, 8-bit floats as uint8_t.
---@return ffi.cdata* pointer, any anchor
function Tensor:ptr() end
---Where the bytes are: { id (who shares with whom), offset, stride, numel (elements), file, position, encoding }, or nil for a computed tensor.
---Where chunks were never written and read as a fill value, `unwritten` of `pieces`.
---@return table|nil
function Tensor:storage() end
---A tensor of quantised elements has the dtype float32, and its `storage()` has `encoding` ("Q4_K"). These are its blocks as they are in the
---file, uint8 [blocks, bytes of a block]; nil for other tensors, and for results of operations on one.
---@return Tensor|nil
function Tensor:blocks() end
---`storage().id` alone: equal for tensors that share their storage.
---@return integer|nil
function Tensor:storage_id() end
---Why its elements cannot be read, where that is known.
---@return string|nil
function Tensor:problem() end
---Whether every element is one of a file or of memory, or a constant, as it is: moved, but not cast or computed.
---@return boolean
function Tensor:is_moved() end
---The same bytes seen the same way: tied.
---@return boolean
function Tensor:same(other) end
---How two tensors of one shape differ, in one pass: { numel, different, first, max_abs, max_rel, same_bits, nan_a, nan_b, infinite }: NaN counts
---as infinite in max_abs and max_rel; nan_a and nan_b count elements that are NaN in one only, infinite those with an infinity and another
---number. max_abs of two integer
---tensors is exact: beyond 2^53 it comes as int64 or uint64 cdata, beyond those as a Value.
---Where they differ, also `rel_norm` (the norm of a - b over that of b), `cosine` (nil where one is 0), both of the finite elements, and
---`largest`: the positions, in C order from 0, of as many of the largest differences as asked for.
---@param other Tensor
---@param options? { rtol: number, atol: number, largest: integer }
function Tensor:compare(other, options) end
---What may be wrong with the elements, in one pass on all cores: { numel, nan, inf, first_nan, first_inf (positions in C order from 0),
---constant (the element that all are), fingerprint (a text, equal for equal bytes of one dtype) }. For `dtypes`, also `losses`, of each dtype
---{ overflowed, changed, vanished } counts of a cast, and `largest`, the largest finite size. Bytes that have a checksum are compared with it.
---With `quiet`, a share such as 0.05, also `rms`, `mean` and `largest` of floating elements, and `odd_rows` of a matrix, unless its rows
---have fewer than 8 or very many elements: { rows, columns, median (of the rows' RMS), zero, quiet (an RMS below this share of the median),
---repeated (equal to a neighbour), zero_columns }, each of these four nil or { count, { first, last }, … } with the first runs, from 0.
---@param options? { dtypes: string[], quiet: number }
---@return table
function Tensor:scan(options) end
---The one element that is repeated everywhere, if the file says so (an H5 `full`); else nil.
function Tensor:fill() end
---The same data as a parameter, an ndarray, …: a new leaf.
---@param options { role: string, requires_grad: boolean }
---@return Tensor
function Tensor:as(options) end

---@class Checkpoint  `ckpt["model.lm_head.weight"]` finds a value by its dotted path; a missing key is an error, so ask with
---`get` or `has`. The names of the fields and methods here come first: a key of such a name ("version", "format", …) is read as
---`ckpt:get "version"`. A checkpoint and the containers of its tree are read-only: change a copy (`cbk.copy`, `cbk.deep_copy`). An
---output copies what it is given of one.
---@field [string] any
---@field root any           the tree; nearly always a Dict
---@field format string      "torch-zip" "torch-legacy" "torch-sharded" "safetensors" "safetensors-sharded" "cerebras-h5" "flat-h5" "flat-h5-sharded" "tensorflow" "npy" "npz" "gguf" "dcp" "nemo"; folders of ranks: "deepspeed-zero" "dtensor" "meta-parallel" "megatron" "dcp-safetensors"
---@field version string
---@field path string
---@field files string[]
---@field metadata any       format-level metadata, a Dict or null
---@field warnings string[]     what the reader noticed
---@field unreadable string[]   which values cannot be read, and why
---@field lost string[]      what `salvage` left out
local Checkpoint = {}

---The value at a dotted path, or nil.
---@param key string
function Checkpoint:get(key) end
---Whether there is a value at a dotted path.
---@param key string
---@return boolean
function Checkpoint:has(key) end
---Iterates over the tensors in the order of the tree: dotted key, Tensor.
---@param pattern? string  a glob over the whole key: * ? [a-z] {a,b}
---@return fun(): string, Tensor
function Checkpoint:tensors(pattern) end
---All leaves (tensors and other values): dotted key, value.
function Checkpoint:leaves(pattern) end
---The root with its exact kind, as `cbk.raw` gives values.
function Checkpoint:raw_root() end
---Releases the files; tensors that were handed out stay valid.
function Checkpoint:close() end

---`allow_records`: instances of classes in a pickle may be written as they were read (in H5: are read at all). `allow_external`: folders beside the
---checkpoint's own where files that it names may be. `salvage`: of a file that is cut short, the tensors that are whole; `lost` and a
---warning name the others. `max_expansion`: the most bytes that its tensors may have beyond those that the files hold, where these repeat
---elements, were never written or are packed more than 1,040 times (default: 1 GiB); tensors beyond that cannot be read.
---@param path string  a checkpoint, an *.index.json or a folder; the format is found from the content
---@param options? { allow_records: boolean, allow_external: string[], salvage: boolean, max_expansion: integer|string }
---@return Checkpoint
function cbk.open(path, options) end

---How elements of files that are opened from now on are read where they are scattered, as in a transpose: "pread", in the file's mapping
---("mmap"), or "default": by pread on file systems of a network, where each fault of a mapping waits for a few pages.
---@param how "pread"|"mmap"|"default"
---@return "pread"|"mmap"|"default" before
function cbk.read_by(how) end

---What a file looks like by its first and last bytes: a name of `cbk.formats`, or "index" (of shards); nil: no checkpoint.
---@private
---@param path string
---@return string?
function cbk.container(path) end

---@class Output   `out["model.x"] = tensor` sets one key of the tree's root (dots are a part of it), whatever the key's name. In an H5
---checkpoint with a tree it sets `x` of the dict `model`, and other new keys with dots are an error.
---A tree that it is given is the script's until `out[key] = value` changes a copy; what the script changes in its tree after that would
---be lost, and is an error.
---`out["model.x"]` reads it, and is an error where nothing was set; the names of methods are methods there.
---A script that ends well has committed, planned or closed each of its outputs: else it ends with an error and status 1. That holds
---for `os.exit(0)` and at the end of a session, too; a script that fails has its own error only.
local Output = {}
---What one key of the root was set to, or nil.
function Output:get(key) end
---Whether a key of the root was set.
---@return boolean
function Output:has(key) end
---The tree that is to be written.
---@return Dict
function Output:root() end
---Another tree in its place.
---@param tree any
function Output:set_root(tree) end
---Where it will be written.
---@return string
function Output:path() end
---What a commit would do: { bytes_read, bytes_written, peak_memory, tensors, lossy = {keys}, warnings = {…} }; prints well. `lossy`
---names tensors whose dtype cannot hold all values of the source's dtype. No values are read.
function Output:plan(options) end
---Streams everything and makes the target visible, whole or not at all. After that the output cannot be changed.
---`progress`: true for the standard display on stderr, or a function of { done, total, seconds, key }. Returns the plan with the
---field `lost`: a list of { key, dtype, numel, overflowed, changed, vanished } for tensors that lost values: finite numbers that became
---infinite or NaN, numbers that an integer dtype does not hold, numbers that became 0. The first two are a `value` error and nothing is
---written, unless `allow_overflow` is set. `provenance`: the words of a command; also writes OUTPUT.provenance.json, for `cbk verify`.
---`max_expansion`: the most bytes that the output may have beyond those that its sources hold, where these repeat elements (stride 0,
---tied tensors written as copies), are compressed, or are one number for all elements. More is a `value` error before the first byte is
---written. The default is the larger of 16 GiB and 1,000 times the size of the sources' files.
---@param options? { threads: integer, memory: integer|string, sync: boolean, allow_overflow: boolean, max_expansion: integer|string, progress: boolean|fun(p: table), sources: SourceFile[], provenance: string[] }
function Output:commit(options) end
---Discards the output; nothing is written.
function Output:close() end

---A checkpoint to write. Missing folders of its path are made when it is committed.
---`metadata`: texts for safetensors; of flat H5, whole numbers as attributes of the file.
---`keep_texts`: flat H5 gets the tensors of texts too, as strings. `companions`: further small files (name → content) that appear
---together with the checkpoint: next to it or inside the folder of a sharded one (also in a folder there: "templates/rag.jinja"),
---elsewhere if the name is an absolute path.
---@param path string
---@param options? { root: any, overwrite: boolean, format: string, h5_version: string, framework_version: string, shard_size: integer|string, shards: table<string, integer>, single_file: boolean, shard_stem: string, keep_texts: boolean, metadata: table, companions: table<string,string>, compression: "deflate"|"lz4"|"zstd" }
---@return Output
function cbk.create(path, options) end
---Commits several outputs as one: all of them appear, or none. Options as of `Output:commit`. Returns their plans.
---@param outputs Output[]
---@param options? { threads: integer, memory: integer|string, sync: boolean, allow_overflow: boolean, max_expansion: integer|string, progress: boolean|fun(p: table), sources: SourceFile[], provenance: string[] }
---@return table[]
function cbk.commit(outputs, options) end
---The present state of a small file that outputs depend on, such as a config. A commit with it in `sources` is refused if another
---program has changed the file by then. Files of checkpoints need no mention.
---@class SourceFile
---@param path string
---@return SourceFile
function cbk.source_file(path) end

-- --- trees
---A new ordered map. Dicts, Lists and outputs copy the plain Lua tables that they are given: what is put into such a table later is not
---seen. Fill the table first, or begin with a Dict or a List (`cbk.list`), which are shared.
---@param from? table|Dict  entries to copy; a list of {key, value} pairs keeps its order, the keys of any other table are sorted
---@param kind? "dict"|"ordereddict"
---@return Dict
function cbk.dict(from, kind) end
---Entries of a Dict, items of a List or of a Lua list.
---@param container Dict|List|any[]
---@return integer
function cbk.count(container) end
---A new list.
---@return List
function cbk.list(from) end
---Iterates a Dict (key, value), a List or a plain table, in order. The loop may change the container.
function cbk.items(container) end
---Inserts an item; those behind it move.
---@param position integer
function cbk.insert(list, position, value) end
---The item, taken out (the last one by default).
---@param position? integer
function cbk.remove(list, position) end
---The keys in their order.
---@return any[]
function cbk.keys(dict) end
---A shallow copy; `cbk.deep_copy` copies containers all the way down (tensors are shared).
function cbk.copy(container) end
---A copy of containers all the way down; tensors are shared.
function cbk.deep_copy(container) end
---The kind of a value, or of `container[key]` without converting it: "dict" "ordereddict" "list" "tuple" "set" "tensor" "int" "float" "bool" "str" "none" "bytes" "object" …
function cbk.kind(value, key) end
---`container[key]` with its exact kind and spelling (1.0 stays a float, 1e-5 stays 1e-5) for assigning it elsewhere.
---@return Value|nil
function cbk.raw(container, key) end
---A float, also of a whole number.
---@return Value
function cbk.float(number) end
---An int of any size, from a number, an int64 or decimal text.
---@return Value
function cbk.int(number) end
---A complex number.
---@return Value
function cbk.complex(re, im) end
---The number as a Lua number, or an error where that would round (int64 beyond 2^53).
---@return number
function cbk.exact(number) end
---Bytes, as Python's.
---@return Value
function cbk.bytes(text) end
---A tuple, which does not change.
---@return List
function cbk.tuple(from) end
---A set.
---@return List
function cbk.set(from) end
---Value at a dotted path below a tree, or nil.
function cbk.find(tree, path) end
---Plain Lua tables all the way down (order is lost).
function cbk.totable(tree) end
---Equal by content, where tensors are equal if they are tied: the same bytes of one storage. `a:compare(b).different == 0` compares elements.
function cbk.equal(a, b) end
---As `items` and `leaves`, with values as `cbk.raw` gives them (and the keys of `raw_items` too).
function cbk.raw_items(container) end
---Iterates over the leaves of a tree, with values as `cbk.raw` gives them.
function cbk.raw_leaves(tree) end

---@private
---@class LeafRow
---@field path string
---@field type string        the dtype of a tensor, the kind of any other value (`cbk.kind`)
---@field encoding string|nil how its elements are stored, if not as their dtype: "Q4_K"
---@field role string|nil    what kind of tensor it is
---@field shape integer[]|nil
---@field numel integer|nil
---@field bytes integer|nil
---@field tied_to string|nil the first key with the same bytes seen the same way
---@field shares string|nil  the first key that shares its storage, if it sees other bytes
---@field problem string|nil why it cannot be read

---@private
---@class LeafTotals
---@field tensors integer
---@field numel integer
---@field bytes integer
---@field values integer     leaves that are not tensors
---@field objects integer    those of them that are instances of classes
---@field tied integer       tensors whose bytes belong to another one already
---@field stored integer     bytes without those of tied tensors
---@field dtypes { dtype: string, tensors: integer, numel: integer, bytes: integer }[]

---The leaves of a tree by number, in the order of the tree; some bytes for each. `#rows`, and `rows[i]`, which is made when it is
---asked for.
---@private
---@class LeafRows
---@field [integer] LeafRow
local LeafRows = {}
---@param i integer
---@return string
function LeafRows:path(i) end
---As a checkpoint gives it.
---@param i integer
---@return any
function LeafRows:value(i) end
---As `cbk.raw` gives it.
---@param i integer
---@return any
function LeafRows:raw(i) end
---The row with this path, after `times` others that have it, too.
---@param path string
---@param times? integer  default 0
---@return integer|nil
function LeafRows:find(path, times) end
---How many rows before this one have its path: keys may contain dots.
---@param i integer
---@return integer
function LeafRows:earlier(i) end
---At most `most` keys of tensors tied to this one, and their number; the same for tensors that only share its storage.
---@param i integer
---@param most integer
---@return string[], integer, string[], integer
function LeafRows:ties(i, most) end
---@return LeafTotals
function LeafRows:totals() end
---The rows as lines of a listing: rows that differ only in numbers are one group.
---@param options? { unfolded: boolean }
---@return LeafGroups
function LeafRows:groups(options) end
---These rows only, in this order.
---@param indices integer[]
---@return LeafRows
function LeafRows:choose(indices) end
---The same rows, "layers.2" before "layers.10": keys of one parent that differ only in a number at their end follow these numbers.
---@return LeafRows
function LeafRows:in_natural_order() end

---@private
---@class LeafGroup
---@field type string|nil    as in LeafRow, of the first row; nil for a container, which has only the next two
---@field encoding string|nil
---@field tensors integer|nil
---@field bytes integer|nil
---@field count integer|nil  rows
---@field shape string|nil   "[4..40, 64]"
---@field role string|nil
---@field values any[]|nil   the first distinct values of rows that are not tensors
---@field more_values boolean|nil
---@field tied_to string|nil
---@field shares string|nil
---@field problem string|nil

---@private
---@class LeafGroups
local LeafGroups = {}
---Calls `visit` for each line of the tree of names.
---@param visit fun(indent: integer, label: string, group: LeafGroup)
function LeafGroups:outline(visit) end
---Calls `visit` with 0, the whole name and the group.
---@param visit fun(indent: integer, label: string, group: LeafGroup)
function LeafGroups:each(visit) end

---@private
---@param tree any
---@param pattern? string        a glob over whole keys; a plain name also means everything below it
---@return LeafRows
function cbk.leaf_rows(tree, pattern) end
---@private
---Groups keys that differ only in numbers, "layers.{0..31}.weight"; only those of one signature.
---@param keys string[]
---@param signatures string[]
---@return { name: string, members: integer[] }[]
function cbk.fold_keys(keys, signatures) end
---@private
---The first and last positions of the numbers in a key that may be those of layers, from left to right.
---@param key string
---@return integer[]
function cbk.key_numbers(key) end
---The text of a key in a dotted path, as Python's str(): "weight", "0", "None".
---@return string
function cbk.key_text(key) end
---The tree made again. `path(path, value)` gives the new dotted path of a leaf, or nil to leave it out; `leaf(path, value)` the
---new leaf, once per shared one. Kinds and order stay; two leaves with one path are an error. Unchanged parts are shared
---with `tree`. With `checkpoint`, where the tree is from, a new tree that takes too much memory for its files is refused.
---@param options { path?: fun(path: string, value: any): string?, leaf?: fun(path: string, value: any): any, checkpoint?: Checkpoint }
---@return Dict
function cbk.rewrite(tree, options) end
---Iterates over the leaves of any tree, as Checkpoint:leaves does: dotted key, value.
function cbk.leaves(tree, pattern) end
---Iterates over the tensors of any tree, as Checkpoint:tensors does: dotted key, tensor.
---@return fun(): string, Tensor
function cbk.tensors(tree, pattern) end

-- --- tensors
---A tensor of the elements in a list.
---@param list any   nested lists, or a flat list with `shape` (complex elements: {re, im} in a flat list)
---@param options? { dtype: string, shape: integer[] }   float32 by default
---@return Tensor
function cbk.tensor(list, options) end
---A tensor of one repeated element, which takes no memory.
---@return Tensor
function cbk.full(shape, value, options) end
---Normal random numbers, the same for the same seed.
---@param options { mean: number, std: number, seed: integer, dtype: string }
---@return Tensor
function cbk.randn(shape, options) end
---Uniform random numbers from low (0) to high (1), the same for the same seed.
---@param options { low: number, high: number, seed: integer, dtype: string }
---@return Tensor
function cbk.rand(shape, options) end
---Ones on and below the diagonal of the last two dims.
---@return Tensor
function cbk.tril(shape, options) end
---Tensors behind each other along a dim.
---@return Tensor
function cbk.cat(tensors, dim) end
---Tensors of one shape along a new dim.
---@return Tensor
function cbk.stack(tensors, dim) end
---The weighted sum of tensors of one shape, all float32 or all float64; `normalize`: divided by the sum of the weights.
---@private
---@param tensors Tensor[]
---@param weights number[]
---@param options? { normalize: boolean }
---@return Tensor
function cbk.weighted_sum(tensors, weights, options) end
---Spherical linear interpolation from `a` (t = 0) to `b` (t = 1), each as one vector; linear where they are nearly parallel. Both are
---read once more for the angle, when the first element of the result is read.
---@private
---@param a Tensor  float32 or float64
---@param b Tensor  of the same dtype and shape
---@param t number
---@return Tensor
function cbk.slerp(a, b, t) end
---base + factor · the weighted sum of what is kept of `tensors` - base. `trim`: of each difference, `densities` of its largest elements
---("magnitude"), or random ones ("random": a function of `seed`, `name`, the tensor's place in the list and the element's position).
---`rescale`: those that are kept are scaled to the sum of sizes before. `consensus`: only differences with the sign of their weighted sum
---count. `normalize`: divided by the sum of the weights that count. The differences are measured when the first element is read.
---@private
---@param base Tensor  float32 or float64
---@param tensors Tensor[]   of the same dtype and shape
---@param weights number[]
---@param options? { trim: "magnitude"|"random", densities: number[], rescale: boolean, consensus: boolean, normalize: boolean, factor: number, seed: integer, name: string }
---@return Tensor
function cbk.add_differences(base, tensors, weights, options) end
---@private
---@class LowRank   The difference of two matrices as a product of two thin ones: a truncated singular value decomposition, with the
---square roots of the values on both sides. It is computed when an element of a side is read, and dropped when both sides were written.
local LowRank = {}
---@private
---The rank that was asked for, at most the smaller extent of the matrix.
---@return integer
function LowRank:rank() end
---@private
---@return Tensor   float32 (rows, rank)
function LowRank:left() end
---@private
---@return Tensor   float32 (rank, columns)
function LowRank:right() end
---@private
---The sum of squares that the product has, and that of all elements; nil before it was computed in this process.
---@return number|nil kept, number|nil all
function LowRank:energy() end
---@private
---@param tuned Tensor   a float32 matrix
---@param base Tensor    of the same shape
---@param rank integer
---@return LowRank       of tuned - base
function cbk.low_rank(tuned, base, rank) end
---Writes a tensor as comma-separated values: a line for each run along the last dim, with the fewest digits that give the same numbers.
---@param options? { overwrite: boolean }
function cbk.write_csv(path, tensor, options) end
---@private
---Writes the elements to stdout in blocks: a line {"bytes":N} before each. A block is read before its line is written.
---@param tensor Tensor
function cbk.write_framed(tensor) end
---@private
---Where another process finds the elements, in C order: the path of an open file and the offset in it. Nil if they are not in one range of
---a file, or are decoded when they are read. Call `cbk.verify_read`, too.
---@param tensor Tensor
---@return string|nil path, number|nil offset
function cbk.file_range(tensor) end
---@private
---Fails if the checksums of storages that the tensor is all of say that they are damaged.
---@param tensor Tensor
function cbk.verify_read(tensor) end
---{ name, size (bytes), floating, integer } of a dtype by any of its names.
---@param name string
function cbk.dtype(name) end

-- --- configs
---Configs: YAML and JSON.
cbk.config = {}
---YAML or JSON by suffix (else by content). Order, ints, floats and their spelling are kept. A key that is repeated in one map
---keeps its last value, as in Python, with a warning on stderr.
---@return Dict
function cbk.config.load(path) end
---Writes a config; the suffix of the path says the format.
---@param options? { overwrite: boolean, format: "yaml"|"json", indent: integer, sort: boolean }
function cbk.config.save(tree, path, options) end
---The line of a field in a config file, from 1, for messages: of the last of the keys that is found, items of lists by their number from
---0; nil without any of them.
---@param path string
---@param keys string[]
---@return integer|nil
function cbk.config.line(path, keys) end
---A config out of a text.
---@param format "yaml"|"json"
function cbk.config.parse(text, format) end
---A config as a text.
---@return string
function cbk.config.dump(tree, format, options) end
---JSON in one line, or indented; `python`: NaN and Infinity as Python writes them; `ascii`: escapes beyond ASCII;
---`shown`: escapes of what `cbk.shown` escapes, and of lone surrogates; `limit`: longer JSON is an error.
---@param options? { indent: integer, python: boolean, ascii: boolean, shown: boolean, limit: integer }
---@return string
function cbk.json(value, options) end
---The value of a JSON text, which may be larger than a config.
---@param text string
---@return any
function cbk.parse_json(text) end

-- --- files
---Files and folders, for scripts that arrange inputs and outputs. What writes a file makes the folders that its path names.
cbk.fs = {}
function cbk.fs.exists(path) end          -- a file or folder
---The path of a file in a folder that the user has named, but not the file; nil if it is missing. A symbolic link that leads neither
---below the folder nor to the blobs of its Hugging Face cache is an error (`refused`), unless it ends below one of `allowed`.
---@param allowed? string[]
---@return string?
function cbk.fs.beside(folder, name, allowed) end
function cbk.fs.real(path) end            -- without symbolic links, as far as it exists
function cbk.fs.is_dir(path) end          -- whether it is a folder
function cbk.fs.mkdir(path) end          -- with parents; an existing folder is fine
function cbk.fs.list(path) end           -- sorted names
function cbk.fs.read(path) end           -- a small file as text
function cbk.fs.write(path, text, options) end  -- { overwrite }
---@param files table<string, string>   path → text: all of them are written, or none
function cbk.fs.write_all(files, options) end -- { overwrite }
function cbk.fs.size(path) end            -- of a file in bytes
function cbk.fs.modified(path) end        -- when a file or folder was changed last, in seconds since 1970
function cbk.fs.join(...) end             -- "folder", "name" → "folder/name"
function cbk.fs.basename(path) end        -- the last part of a path
function cbk.fs.dirname(path) end         -- a path without its last part
function cbk.fs.folder_of(path) end       -- a folder itself, or the folder that a file is in
function cbk.fs.inside(folder, name) end  -- "folder/name"; an error if that would be elsewhere: "../x", a link out of the folder
function cbk.fs.absolute(path) end        -- from the root, without ".."
function cbk.fs.remove(path, options) end -- { recursive }; a missing file is fine
function cbk.fs.temp_dir() end            -- a new empty folder
function cbk.fs.hold(folder) end          -- keeps it for this program until it ends; false if another one has it
function cbk.fs.temporary(target) end     -- the name of a file beside `target` that is removed when the program ends
function cbk.fs.program() end             -- the running program, for scripts that call cbk again

-- --- formats (host/checkpoint/formats.cpp)

---@class Format
---@field name string        "safetensors"
---@field suffixes string[]  of its files: { ".safetensors" }
---@field read boolean       whether it can be opened, without a word on its name
---@field written boolean    whether it can be written
---@field shards boolean     whether it can be written in shards
---@field prefix boolean     whether an output's name is a prefix, of which the format makes the names of its files

---All formats of checkpoints.
---@return Format[]
function cbk.formats() end
---The format that the suffix of a path says: "torch", "safetensors", "h5", "tensorflow", "npy" or "npz"; nil when it says none.
---@param path string
---@return string?
function cbk.format_of_name(path) end
---All suffixes that say a format, as text for help and messages: ".pt .pth .bin .ckpt (torch), …".
---@return string
function cbk.suffixes() end

-- --- formats at their own level: cbk.gguf, cbk.h5, cbk.pickle, cbk.safetensors, cbk.tensorflow (bindings/bind_formats.cpp, bindings/bind_h5_edit.cpp)
---GGUF files at their own level.
cbk.gguf = {}
---The texts of a long array of metadata, such as a vocabulary.
---@param object Value  of the type "gguf.texts"
---@return string[]
function cbk.gguf.texts(object) end
---H5 files at their own level.
cbk.h5 = {}
---{ attributes = {name → value}, datasets = { {name, shape, dtype, chunks, filters, attributes, offset}, … } }
function cbk.h5.inspect(path) end

---@class H5Edit   Changes to an H5 file that do not write its tensors again. Names are those of datasets at its top, as stored.
---A script that changed something ends with `commit`, `save_as` or `close`, as with an Output.
local H5Edit = {}
---The names of the datasets at its top.
---@return string[]  in the order of their bytes
function H5Edit:names() end
---Whether there is a dataset of this name.
---@param name string
---@return boolean
function H5Edit:has(name) end
---An attribute of the root, or nil.
function H5Edit:attribute(name) end
---The one element of a dataset.
function H5Edit:scalar(name) end
---Whether a commit would write anything.
---@return boolean
function H5Edit:is_changed() end
---Sets a text attribute of the root.
function H5Edit:set_attribute(name, text) end
---Makes `name` a hard link to the dataset `source`: the same data under both names.
function H5Edit:link(name, source) end
---Every element of a small dataset becomes `value`, in the dataset's dtype.
---@param value number|boolean
function H5Edit:set_value(name, value) end
---Writes a copy with the changes at the speed of `cp`; it appears whole or not at all.
---@param options? { overwrite: boolean, sync: boolean, progress: boolean|fun(p: table) }
function H5Edit:save_as(path, options) end
---Changes the file itself, and closes the edit. Killed at any moment, the file is the old one or the new one.
---@param options? { sync: boolean }   sync: wait until the new one is on the disk
function H5Edit:commit(options) end
---Forgets the changes.
function H5Edit:close() end

---Opens an H5 file to change it without writing its tensors again.
---@param path string
---@param options? { allow_records: boolean, allow_external: string[] }   as of `cbk.open`
---@return H5Edit
function cbk.h5.edit(path, options) end
---The tree in the `__spec__` of formats 0.1 to 0.4: the dotted keys of its leaves, and its text as this version writes it, with
---every TensorScalarDict a dict.
---@param text string
---@return { keys: string[], text: string }
function cbk.h5.parse_spec(text) end
---The pickles and zip records of torch files.
cbk.pickle = {}
---The zip records: { {name, size, offset, compressed, crc}, … }
function cbk.pickle.records(path) end
---The opcodes of a torch file's pickle, one after the other: `for opcode in cbk.pickle.opcodes(path) do print(opcode.name) end`.
---@return fun(): { offset: integer, name: string, argument: string }?
function cbk.pickle.opcodes(path) end
---Compares every zip record with its checksum, which reads the whole file; an error names the damaged one. The number of records.
---@return integer
function cbk.pickle.verify(path) end
---The functions and classes that the pickles of a torch file name: { {name, offset, kind}, … }. The kind is "plain" for data, "record" for
---what is kept as a description, "refused" for what could run code. Nothing is executed.
---@return { name: string, offset: integer, kind: string }[]
function cbk.pickle.globals(path) end
---The headers of safetensors files.
cbk.safetensors = {}
---{ metadata = {…}, tensors = { {name, dtype, shape, begin, stop}, … } in the order of the file }
function cbk.safetensors.inspect(path) end
---What only TensorFlow's checkpoints have.
cbk.tensorflow = {}
---The texts of a tensor of texts (an object of type "tensorflow.tensor"), in C order.
---@param object Value
---@return string[]
function cbk.tensorflow.texts(object) end
---A record of a TensorBoard event file: the scalars of a step, in the order of their tags. Without a step the record that such a file
---begins with.
---@param wall_time number                seconds since 1970
---@param step? integer
---@param scalars? table<string, number>   by tags: "loss"
---@return string   # bytes
function cbk.tensorflow.event(wall_time, step, scalars) end

-- --- the terminal
---What stdin, stdout and stderr are.
cbk.terminal = {}
---Whether a stream is a terminal; stdout by default.
---@param stream? "stdin"|"stdout"|"stderr"
function cbk.terminal.is_tty(stream) end
---Columns, or nil without a terminal.
function cbk.terminal.width(stream) end
---Lines, or nil without a terminal.
function cbk.terminal.height(stream) end
---Shows a line about progress in stderr's terminal, in place of the one before; "" ends it. Messages and the end of the program erase it.
---@private
---@param text string
function cbk.terminal.progress(text) end
---Prints an error on stderr: "cbk: …", in a terminal with breaks between words.
---@private
---@param text string   without control characters
function cbk.terminal.error(text) end
---How many columns a text takes: a wide (East Asian) character two, a combining one none.
---@param text string
---@return integer
function cbk.terminal.columns(text) end

-- --- Lua parts, loaded when first used
---Values as text for people.
cbk.inspect = require "cbk.inspect"
---Command lines of scripts: options, help, exit codes.
cbk.cli = require "cbk.cli"
---The progress of a commit, on stderr.
cbk.progress = require "cbk.progress"
---Names in their natural order: "layers.2" before "layers.10".
cbk.natural = require "cbk.natural"
---Like keys on one line: "layers.{0..31}.weight".
cbk.fold = require "cbk.fold"
---Numbers of quantised weights.
cbk.dequantised = require "cbk.dequantised"
---States of data loaders, and where a run resumes.
cbk.dataloader_state = require "cbk.dataloader_state"
---The rules of `cbk fix-checkpoint-spec`.
cbk.checkpoint_spec = require "cbk.checkpoint_spec"

-- --- the rest
---`cbk.glob(pattern, text)` is whether the whole text matches; `cbk.glob(pattern)` gives the function that does.
---Patterns: * (dots too) ? [a-z] [!a-z] {a,b}; a backslash takes the next character literally.
---@param pattern string
---@param text? string
function cbk.glob(pattern, text) end
---Those of `names` that look most like `name`, nearest first.
---@param limit? integer  3 by default
---@return string[]
function cbk.nearest(name, names, limit) end
---Two lower-case digits per byte.
---@return string
function cbk.hex(text) end
---Untrusted text for a terminal: control characters, marks that turn the direction of text, and bytes that are no characters
---become \xNN. `lines`: line feeds and tabs stay. A script's `print` does not do this: pass keys and texts through this.
---@param text string
---@param lines? boolean
function cbk.shown(text, lines) end
---Untrusted text for a message: in quotes, control characters escaped, cut at `limit` bytes (120).
function cbk.quote(text, limit) end
---Bytes from "10GB" / "512MiB".
function cbk.parse_size(text) end
---"1.5 GiB" of bytes.
function cbk.format_size(bytes) end
---@private
---A PNG file of up to 256 colours. `palette` has three bytes for each, `pixels` a byte for each pixel, row by row.
---@param palette string
---@param pixels string
---@return string
function cbk.png(width, height, palette, pixels) end
---Prints a warning on stderr: "warning: …", or as a JSON object where a command was called with --json.
function cbk.warn(message) end
---Seconds on a clock that never goes back, to measure with.
---@return number
function cbk.clock() end
---Waits. Ctrl-C ends it with the error `interrupted`.
---@param seconds number
function cbk.sleep(seconds) end
---What an error consists of; tostring gives its text, which is made of the parts, and so does the field `message`.
---@class Error
---@field code string         what kind of thing went wrong: "usage", "key", "format", … (`cbk help json` lists them)
---@field problem string      what failed, on what, why
---@field context? string[]   what it happened in, outermost first: "cannot open 'model.pt'"
---@field file? string        what it is about, if that is a file, a key of a checkpoint or a field of a config
---@field key? string
---@field field? string
---@field expected? string
---@field found? string
---@field supported? string   "only … is supported" in the text
---@field advice? string      what to try
---@field where? string       "file:line" of the script that met it
---Raises an Error.
---@param code string
---@param problem string
---@param parts? table   further fields of the error
function cbk.fail(code, problem, parts) end
---@private
---The text of whatever was raised: an Error, a string, another value.
---@return string
function cbk.problem_text(problem) end
---@private
---{"error": {…}} of whatever was raised, for stderr.
---@return string
function cbk.error_json(problem) end
---@private
---What errors of the code `exists` advise from now on: by itself "remove it, choose another name or pass overwrite = true". A command
---line that `cbk.cli` reads advises `--overwrite` where there is such an option.
---@param advice string
function cbk.advise_overwrite(advice) end
---@private
---Every commit from here on is a step of a job. See `cbk.job`.
---@param options { folder: string, action: string, part: integer, parts: integer, command: string[], directory: string, provenance: string, output: string }
function cbk.set_job(options) end
---@private
---@param path string   of a provenance
---@return string[] words, string folder, string output   where it ran, and the path of the output then
function cbk.provenance_command(path) end
---@private
---@param path string     of a provenance
---@param output string   which may have another name now
---@return string[]       what differs, a line each
function cbk.provenance_differences(path, output) end
---@private
---@return boolean
function cbk.has_job() end
---@private
---Whether a job was killed while its folder was removed, which is done now.
---@param folder string
---@return boolean
function cbk.complete_job(folder) end
---@private
---Gives memory that the host has freed back to the system, so that Lua can have it.
function cbk.trim_memory() end
---@private
---The number of this process among those that work together, from 0, and how many they are. See `cbk.team`.
---@return integer rank, integer size
function cbk.team_place() end
---@private
---The bytes of all processes that work together, in their order. All have to call it.
---@param bytes string
---@return string[]
function cbk.team_exchange(bytes) end
---@private
---A digest of the sizes, times, beginnings and ends of files.
---@param paths string[]
---@return string
function cbk.file_digest(paths) end
---@private
---Says how many bytes this process has read.
---@param bytes number
---@return number   that the others have read
function cbk.team_done(bytes) end
---@private
---@param folder string   of a job
---@return number begun, { name: string, bytes: integer, modified: number }[]   times are seconds since 1970
function cbk.job_journals(folder) end
---The version of the program, "0.2.0".
cbk.version = ""

return cbk
