#include "native/tf/saved_model.h"

#include <algorithm>
#include <climits>
#include <map>
#include <numeric>
#include <set>
#include <unordered_set>
#include <utility>

#include "native/base/clock.h"
#include "native/base/wire_writer.h"
#include "native/tensor/tensor_access.h"
#include "native/tf/callable_set.h"
#include "native/tf/checkpoint_index.h"
#include "native/tf/core_share.h"
#include "native/tf/fixed_variables.h"
#include "native/tf/joint_runners.h"
#include "native/tf/loaded_tables.h"
#include "native/tf/missing_kernels.h"
#include "native/tf/op_library.h"
#include "native/tf/parameter_memory.h"
#include "native/tf/resource_reads.h"
#include "native/tf/row_analysis.h"
#include "native/tf/run_memory_limits.h"
#include "native/tf/runtime.h"
#include "native/tf/scatter_watch.h"
#include "native/tf/servable_device.h"
#include "native/tf/session_callables.h"
#include "native/tf/session_options.h"
#include "native/tf/session_runner.h"
#include "native/tf/signature_def.h"
#include "native/tf/status.h"
#include "native/tf/tensor_storage.h"
#include "native/tf/variable_writes.h"
#include "native/tf/write_watch.h"
#include "tensorflow/cc/saved_model/constants.h"
#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/cc/saved_model/loader_util.h"
#include "tensorflow/cc/saved_model/reader.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/path.h"
#include "tensorflow/core/protobuf/config.pb.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/public/session.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"

namespace millpond::tf {
namespace {

using base::Status;
using base::StatusOr;
using tensorflow::io::JoinPath;

using NamedTensors = std::vector<std::pair<std::string, tensorflow::Tensor>>;

enum class Step { kNew, kGraph, kSession, kRestored, kInitialized, kReady };

// Encodes the SignatureDefMap { map<string, SignatureDef> signature_def = 1; } of
// tensorflow_serving/apis/get_model_metadata.proto.
std::string EncodeSignatureDefMap(const tensorflow::MetaGraphDef& meta_graph) {
  constexpr uint32_t kSignatureDef = 1;
  constexpr uint32_t kKey = 1;
  constexpr uint32_t kValue = 2;
  std::string encoded;
  for (const auto& [name, definition] : meta_graph.signature_def()) {
    const std::string body = definition.SerializeAsString();
    const size_t entry_bytes =
        base::DelimitedBytes(kKey, name.size()) + base::DelimitedBytes(kValue, body.size());
    const size_t before = encoded.size();
    encoded.resize(before + base::DelimitedBytes(kSignatureDef, entry_bytes));
    base::WireWriter writer(encoded.data() + before);
    writer.Delimited(kSignatureDef, entry_bytes);
    writer.BytesField(kKey, name);
    writer.BytesField(kValue, body);
  }
  return encoded;
}

// Returns the pool of restore and init: the calling thread or, in the stock runtime, a pool.
int LoadPool() {
  constexpr int kCallingThread = -1;
  constexpr int kDefaultPool = 0;
  constexpr int kLoadPool = 1;
  const RuntimeOptions runtime = CurrentRuntimeOptions();
  if (!runtime.is_stock) return kCallingThread;
  return runtime.has_load_pool ? kLoadPool : kDefaultPool;
}

std::string CheckpointPrefix(const std::string& directory) {
  return JoinPath(directory, tensorflow::kSavedModelVariablesDirectory,
                  tensorflow::kSavedModelVariablesFilename);
}

bool HasCheckpoint(const std::string& prefix) {
  return tensorflow::Env::Default()->FileExists(tensorflow::MetaFilename(prefix)).ok();
}

// Returns the size of the tensor in memory. The size of the proto may be much smaller, because one
// value can stand for all elements.
size_t TensorBytes(const tensorflow::TensorProto& proto) {
  const int element_bytes = tensorflow::DataTypeSize(proto.dtype());
  tensorflow::TensorShape shape;
  const bool is_sized =
      tensorflow::TensorShape::BuildTensorShape(proto.tensor_shape(), &shape).ok();
  if (element_bytes == 0 || !is_sized) return proto.ByteSizeLong();
  return static_cast<size_t>(shape.num_elements()) * element_bytes;
}

// Appends the sizes of the constants of the graph and of its functions. Every callable has its own
// copy of the constants that it reaches: at most all constants, once for each signature.
void AppendConstantBytes(const tensorflow::MetaGraphDef& meta_graph, size_t copy_count,
                         std::vector<size_t>* bytes) {
  const auto append = [&](const auto& nodes) {
    for (const auto& node : nodes) {
      if (node.op() != "Const") continue;
      const auto value = node.attr().find("value");
      if (value == node.attr().end()) continue;
      bytes->insert(bytes->end(), copy_count, TensorBytes(value->second.tensor()));
    }
  };
  append(meta_graph.graph_def().node());
  for (const auto& function : meta_graph.graph_def().library().function()) {
    append(function.node_def());
  }
}

// Returns the number of joint runners that a version may keep. Each may copy all constants. The
// copies of all runners together may take kConstantBytesMax.
size_t JointCountMax(const tensorflow::MetaGraphDef& meta_graph) {
  constexpr size_t kConstantBytesMax = size_t{256} << 20;
  std::vector<size_t> bytes;
  AppendConstantBytes(meta_graph, /*copy_count=*/1, &bytes);
  const size_t sum_bytes = std::accumulate(bytes.begin(), bytes.end(), size_t{1});
  return std::min(JointRunners::kKeptCountMax, kConstantBytesMax / sum_bytes);
}

tensorflow::Tensor StringTensor(const std::string& value) {
  tensorflow::Tensor tensor(tensorflow::DT_STRING, {});
  tensor.scalar<tensorflow::tstring>()() = value;
  return tensor;
}

// Makes the feeds of the asset paths for restore and init, which may read asset files. The paths
// are fed because the model may have moved. An export of TensorFlow 1 may list the tensor of a path
// several times: the last path is fed, and fed once, because a session refuses a second feed.
Status AssetFeeds(const tensorflow::MetaGraphDef& meta_graph, const std::string& directory,
                  NamedTensors* feeds) {
  std::vector<tensorflow::AssetFileDef> assets;
  MILLPOND_RETURN_IF_TF_ERROR(tensorflow::internal::GetAssetFileDefs(meta_graph, &assets),
                              "reading the assets of " + directory);
  std::map<std::string, std::string> paths;
  for (const auto& asset : assets) {
    paths[asset.tensor_info().name()] =
        JoinPath(directory, tensorflow::kSavedModelAssetsDirectory, asset.filename());
  }
  for (const auto& [tensor, path] : paths) feeds->emplace_back(tensor, StringTensor(path));
  return {};
}

// Returns true if `spec` has a known rank and `shape` fits it. An open rank fits no shape here:
// the graph was built without the rank, so its shape functions could not check the kernels. For an
// open rank ShapeFits, by contrast, returns true.
bool FitsShapeOfKnownRank(const tensorflow::TensorShape& shape, const tensor::TensorSpec& spec) {
  if (!spec.is_rank_known || static_cast<size_t>(shape.dims()) != spec.dims.size()) return false;
  for (int i = 0; i < shape.dims(); ++i) {
    if (spec.dims[i] != tensor::TensorSpec::kUnknownSize && spec.dims[i] != shape.dim_size(i))
      return false;
  }
  return true;
}

// Returns true if the inputs have the shapes that the graph was built for, so that its kernels need
// no check. Kernels behind an input with an open rank always need the check.
bool HasShapesOf(const tensor::Signature& signature, const tensor::TensorList& inputs) {
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    if (!FitsShapeOfKnownRank(inputs.storage().tensors[i].shape(), signature.inputs[i]))
      return false;
  }
  return true;
}

int64_t ElementCount(const tensor::TensorList& inputs) {
  int64_t count = 0;
  for (const tensorflow::Tensor& tensor : inputs.storage().tensors) count += tensor.NumElements();
  return count;
}

// Runs with the cores that the run is worth, and records its time for the runs after it.
Status RunOnItsShare(const SignatureRunner& runner, const tensor::OutputSet& outputs,
                     const tensor::TensorList& inputs, tensor::TensorList* result) {
  const int64_t element_count = ElementCount(inputs);
  const CoreShareScope core_share(runner.cost().IsWorthSharing(element_count) ? INT_MAX : 1);
  const int64_t begin_ns = base::MonotonicNs();
  const Status ran = runner.Run(outputs, inputs, result);
  if (ran.ok() && core_share.is_counted()) {
    runner.cost().Record(element_count, core_share.cores(), base::MonotonicNs() - begin_ns);
  }
  return ran;
}

// Drops a default that the checked shape of its input does not take.
void CheckDefault(tensor::TensorSpec* input) {
  if (input->default_value == nullptr) return;
  const tensor::TensorView view = tensor::ViewTensor(*input->default_value, 0);
  if (tensor::TensorFits(view.dtype, view.dims, *input)) return;
  input->default_fault = "it is " + tensor::DescribeTensor(view.dtype, true, view.dims) +
                         ", and the input is " + tensor::DescribeTensor(*input);
  input->default_value = nullptr;
}

// Makes the runner of a signature. A stock runtime runs requests as TensorFlow Serving does.
std::unique_ptr<SignatureRunner> MakeRunner(tensorflow::Session* session,
                                            const tensor::Signature& signature) {
  if (CurrentRuntimeOptions().is_stock) return std::make_unique<SessionRunner>(session, signature);
  return std::make_unique<CallableSet>(session, signature);
}

}  // namespace

struct SavedModel::State {
  std::string directory;
  std::unordered_set<std::string> tags;
  Step step = Step::kNew;
  tensorflow::MetaGraphDef meta_graph;  // cleared once the callables are made
  NamedTensors asset_feeds;
  tensor::SignatureMap signatures;
  std::vector<std::string> missing_ops;
  tensor::RowVerdicts row_verdicts;
  std::string signature_def_map;
  const std::shared_ptr<LoadControl> control = std::make_shared<LoadControl>();
  Writes writes;
  std::shared_ptr<ParameterMemory> parameters;  // null: parameters come from the request memory
  std::shared_ptr<LoadedTables> tables;         // null: none is kept
  // Declared after `parameters`, because it may hold tensors of that memory.
  const std::unique_ptr<WriteWatch> write_watch = std::make_unique<WriteWatch>();
  // Members are destroyed in reverse order: callables before the session that they belong to.
  std::unique_ptr<tensorflow::Session> session;
  std::optional<DraftedPrograms> drafted;            // between DraftPrograms and UseAccelerator
  std::unique_ptr<AcceleratedPrograms> accelerated;  // null: all runs on the CPU
  std::map<std::string, std::unique_ptr<SignatureRunner>, std::less<>> callables;
  std::unique_ptr<JointRunners> joint_runners;
  std::unique_ptr<SessionCallables> session_callables;  // null if SessionRun is off

  Status Enter(Step from, const char* name) const {
    if (step == from) return {};
    return base::FailedPrecondition(std::string(name) + " of " + directory +
                                    ": called out of order; each step of a load is called once");
  }

  // Checks that a version can answer requests that name no signature. If it has no serving_default
  // of dense tensors, one of its signatures must work. Otherwise the version must not replace a
  // working version.
  Status CheckCallables() const {
    const auto standard = callables.find(tensor::kDefaultSignatureName);
    if (standard != callables.end()) return standard->second->made();
    for (const auto& [name, callable] : callables) {
      if (callable->made().ok()) return {};
    }
    if (!callables.empty()) return callables.begin()->second->made();
    for (const auto& [name, signature] : signatures) {
      if (!signature.obstacle.empty()) return base::FailedPrecondition(signature.obstacle);
    }
    return {};
  }

  // Returns what watches the writes of a run, or null. A run on the request path pays for it only
  // if its model assigns values that only a run shows.
  WriteWatch* WatchOf(const tensor::RunContext& run) const {
    const bool is_watched =
        run.may_write ? writes.writing == Writing::kAssigns : writes.writing != Writing::kNone;
    return is_watched || write_watch->keeps_state() ? write_watch.get() : nullptr;
  }

  // True if nothing that a request may run writes to a variable.
  bool HasFixedVariables() const {
    return !writes.has_writer && !CurrentRuntimeOptions().serves_session_run;
  }

  Status CheckVariablesStay() const {
    if (HasFixedVariables()) return {};
    return {base::Code::kUnimplemented, "requests may write to the variables of " + directory +
                                            ", and the accelerator has copies of them"};
  }

  StatusOr<const SignatureRunner*> RunnerOf(const tensor::Signature& signature) const {
    const auto callable = callables.find(signature.name);
    if (callable != callables.end()) return callable->second.get();
    return base::FailedPrecondition("signature '" + signature.name + "' cannot be called");
  }

  Status FindInitOp(std::string* init_op) const {
    return FromTensorFlow(tensorflow::internal::GetInitOp(directory, meta_graph, init_op),
                          "looking for the init op of " + directory);
  }

  void LeaveOutTables(CheckpointIndex* index) const {
    auto& entries = index->entries;
    const auto is_table = [this](const auto& entry) { return tables->HasEntry(entry.name); };
    entries.erase(std::remove_if(entries.begin(), entries.end(), is_table), entries.end());
  }

  // Returns the sizes of the tensors that the restore reads, but for the tables.
  StatusOr<std::vector<size_t>> RestoredBytes(const std::string& prefix) const {
    StatusOr<CheckpointIndex> index = ReadCheckpointIndex(prefix);
    if (!index.ok()) return index.status();
    if (tables != nullptr) LeaveOutTables(&index.value());
    return tf::TensorBytes(index.value());
  }

  // Tells the restore ops what all of them read or copy together.
  Status SetRestoreBytes(const std::string& prefix) const {
    const StatusOr<std::vector<size_t>> bytes = RestoredBytes(prefix);
    if (!bytes.ok()) return bytes.status();
    const size_t table_bytes = tables == nullptr ? 0 : tables->BytesToFill();
    const size_t all = std::accumulate(bytes.value().begin(), bytes.value().end(), table_bytes);
    control->restore_bytes.store(static_cast<int64_t>(all));
    return {};
  }

  // Runs `target` on this thread, off the pools that requests use. By a callable, because the
  // session would keep the executor of a Run to its end: the graph, and its constants.
  Status RunTarget(const std::string& target, const NamedTensors& feeds, const char* doing,
                   KernelWatch* watch = nullptr) {
    const ParameterMemoryScope parameter_scope(parameters);
    const LoadScope load_scope(control.get());
    tensor::RunContext run;
    run.is_cancelled = &control->is_cancelled;
    const RunScope run_scope(run, /*checks_shapes=*/false, RunScope::kNoLimit, watch);
    const CoreShareScope core_share;
    tensorflow::CallableOptions options;
    options.mutable_run_options()->set_inter_op_thread_pool(LoadPool());
    options.add_target(target);
    std::vector<tensorflow::Tensor> fed;
    for (const auto& [name, tensor] : feeds) {
      options.add_feed(name);
      fed.push_back(tensor);
    }
    const std::string what = doing + (" " + directory);
    tensorflow::Session::CallableHandle callable = 0;
    MILLPOND_RETURN_IF_TF_ERROR(session->MakeCallable(options, &callable), what);
    std::vector<tensorflow::Tensor> none;
    const absl::Status ran = session->RunCallable(callable, fed, &none, nullptr);
    session->ReleaseCallable(callable).IgnoreError();
    return FromTensorFlow(ran, what);
  }
};

SavedModel::SavedModel(std::string directory, std::vector<std::string> tags)
    : state_(std::make_unique<State>()) {
  state_->directory = std::move(directory);
  state_->tags = {tags.begin(), tags.end()};
}

SavedModel::~SavedModel() {
  if (state_->session == nullptr) return;
  state_->callables.clear();
  state_->joint_runners.reset();
  state_->session_callables.reset();
  state_->session->Close().IgnoreError();
}

Status SavedModel::ReadGraph() {
  MILLPOND_RETURN_IF_ERROR(state_->Enter(Step::kNew, "ReadGraph"));
  if (!IsRuntimeInitialized()) {
    return base::FailedPrecondition("no runtime: call InitializeRuntime before the first load");
  }
  absl::Status read = tensorflow::ReadMetaGraphDefFromSavedModel(state_->directory, state_->tags,
                                                                 &state_->meta_graph);
  // TensorFlow returns OUT_OF_RANGE for a file that is cut within a field.
  if (absl::IsOutOfRange(read)) read = absl::DataLossError("saved_model.pb ends within a field");
  MILLPOND_RETURN_IF_TF_ERROR(read, "reading the graph of " + state_->directory);
  for (const auto& [name, definition] : state_->meta_graph.signature_def()) {
    // Skips the init op, which is stored as a signature, because clients must not run it.
    if (name == tensorflow::kSavedModelInitOpSignatureKey) continue;
    tensor::Signature& signature = state_->signatures[name] = MakeSignature(name, definition);
    signature.has_checked_method_name = CurrentRuntimeOptions().checks_method_names;
  }
  state_->signature_def_map = EncodeSignatureDefMap(state_->meta_graph);
  state_->missing_ops = tf::MissingOps(state_->meta_graph.graph_def());
  state_->writes = AnalyzeWrites(state_->meta_graph);
  if (CurrentRuntimeOptions().serves_session_run) state_->writes.can_be_sealed = false;
  MILLPOND_RETURN_IF_ERROR(AssetFeeds(state_->meta_graph, state_->directory, &state_->asset_feeds));
  state_->step = Step::kGraph;
  return {};
}

Status SavedModel::CheckInputShapes() {
  MILLPOND_RETURN_IF_ERROR(state_->Enter(Step::kGraph, "CheckInputShapes"));
  for (auto& [name, signature] : state_->signatures) {
    for (tensor::TensorSpec& input : signature.inputs) {
      input.has_checked_shape = true;
      CheckDefault(&input);
    }
  }
  return {};
}

base::StatusOr<std::vector<size_t>> SavedModel::ParameterBytes() const {
  MILLPOND_RETURN_IF_ERROR(state_->Enter(Step::kGraph, "ParameterBytes"));
  std::vector<size_t> bytes;
  const std::string prefix = CheckpointPrefix(state_->directory);
  if (HasCheckpoint(prefix)) {
    StatusOr<std::vector<size_t>> restored = state_->RestoredBytes(prefix);
    if (!restored.ok()) return restored.status();
    bytes = std::move(restored.value());
  }
  AppendConstantBytes(state_->meta_graph, std::max<size_t>(1, state_->signatures.size()), &bytes);
  return bytes;
}

Status SavedModel::PlanTables() {
  MILLPOND_RETURN_IF_ERROR(state_->Enter(Step::kGraph, "PlanTables"));
  const std::string prefix = CheckpointPrefix(state_->directory);
  // The stock runtime has a restore of its own.
  if (CurrentRuntimeOptions().is_stock || !state_->meta_graph.has_saver_def() ||
      !HasCheckpoint(prefix)) {
    return {};
  }
  std::string init_op;
  MILLPOND_RETURN_IF_ERROR(state_->FindInitOp(&init_op));
  StatusOr<TablePlan> plan =
      tf::PlanTables(state_->meta_graph, init_op, !state_->HasFixedVariables(), prefix);
  if (!plan.ok()) return plan.status();
  state_->tables = std::make_shared<LoadedTables>(std::move(plan.value()));
  return {};
}

const std::shared_ptr<LoadedTables>& SavedModel::tables() const { return state_->tables; }

Status SavedModel::SetParameterMemory(memory::MemoryResource* parameters) {
  MILLPOND_RETURN_IF_ERROR(state_->Enter(Step::kGraph, "SetParameterMemory"));
  state_->parameters = std::make_shared<ParameterMemory>(parameters, tensorflow::cpu_allocator());
  return {};
}

std::shared_ptr<void> SavedModel::parameter_allocator() const { return state_->parameters; }

StatusOr<std::vector<AcceleratedSignature>> SavedModel::CompileAhead(
    const DraftRules& rules, const pjrt::AheadCompiler* compiler,
    const pjrt::ExecutableCache& cache) const {
  MILLPOND_RETURN_IF_ERROR(state_->Enter(Step::kGraph, "CompileAhead"));
  MILLPOND_RETURN_IF_ERROR(state_->CheckVariablesStay());
  return tf::CompileAhead(state_->meta_graph, state_->signatures, rules, compiler, cache);
}

Status SavedModel::CreateSession() {
  MILLPOND_RETURN_IF_ERROR(state_->Enter(Step::kGraph, "CreateSession"));
  const ParameterMemoryScope parameter_scope(state_->parameters);
  MILLPOND_RETURN_IF_TF_ERROR(
      tensorflow::LoadMetagraphIntoSession(MakeSessionOptions(state_->meta_graph),
                                           state_->meta_graph, &state_->session),
      "creating the session of " + state_->directory);
  state_->step = Step::kSession;
  return {};
}

Status SavedModel::Restore() {
  MILLPOND_RETURN_IF_ERROR(state_->Enter(Step::kSession, "Restore"));
  const std::string prefix = CheckpointPrefix(state_->directory);
  const auto& saver = state_->meta_graph.saver_def();
  // A graph without variables has no checkpoint. CheckSavedModel has verified that a graph with
  // variables has a checkpoint.
  if (state_->meta_graph.has_saver_def() && HasCheckpoint(prefix)) {
    NamedTensors feeds = state_->asset_feeds;
    feeds.emplace_back(saver.filename_tensor_name(), StringTensor(prefix));
    MILLPOND_RETURN_IF_ERROR(state_->SetRestoreBytes(prefix));
    const TablesScope tables_scope(state_->tables.get());
    MILLPOND_RETURN_IF_ERROR(state_->RunTarget(saver.restore_op_name(), feeds, "restoring"));
  }
  state_->step = Step::kRestored;
  return {};
}

Status SavedModel::RunInit() {
  MILLPOND_RETURN_IF_ERROR(state_->Enter(Step::kRestored, "RunInit"));
  std::string init_op;
  MILLPOND_RETURN_IF_ERROR(state_->FindInitOp(&init_op));
  if (!init_op.empty()) {
    ScatterWatch watch(state_->tables == nullptr ? nullptr : state_->tables->init_watch());
    MILLPOND_RETURN_IF_ERROR(
        state_->RunTarget(init_op, state_->asset_feeds, "running the init op of", &watch));
  }
  state_->step = Step::kInitialized;
  return {};
}

std::vector<std::string> SavedModel::VariablesWithoutValue() const {
  if (state_->step != Step::kInitialized) return {};
  const std::set<std::string> names =
      tf::VariablesWithoutValue(FindResourceReads(state_->meta_graph), state_->session.get());
  return {names.begin(), names.end()};
}

std::vector<std::string> SavedModel::TablesWithoutValue() const {
  if (state_->step != Step::kInitialized) return {};
  const std::set<std::string> names =
      tf::TablesWithoutValue(FindResourceReads(state_->meta_graph), state_->session.get());
  return {names.begin(), names.end()};
}

Status SavedModel::AnalyzeRows() {
  MILLPOND_RETURN_IF_ERROR(state_->Enter(Step::kInitialized, "AnalyzeRows"));
  state_->row_verdicts = tf::AnalyzeRows(state_->meta_graph);
  return {};
}

Status SavedModel::DraftPrograms(AcceleratorUse use) {
  MILLPOND_RETURN_IF_ERROR(state_->Enter(Step::kInitialized, "DraftPrograms"));
  MILLPOND_RETURN_IF_ERROR(state_->CheckVariablesStay());
  auto drafted = DraftedPrograms::Draft(std::move(use), state_->meta_graph, state_->signatures,
                                        state_->tables.get(), state_->session.get());
  if (!drafted.ok()) return drafted.status();
  state_->drafted.emplace(std::move(drafted.value()));
  return {};
}

ProgramList SavedModel::ListPrograms() const {
  return state_->drafted ? state_->drafted->List() : ProgramList();
}

Status SavedModel::UseAccelerator() {
  MILLPOND_RETURN_IF_ERROR(state_->Enter(Step::kInitialized, "UseAccelerator"));
  if (!state_->drafted) {
    return base::FailedPrecondition("UseAccelerator of " + state_->directory +
                                    ": no program is drafted");
  }
  DraftedPrograms drafted = *std::exchange(state_->drafted, {});
  return base::MoveValue(AcceleratedPrograms::Make(std::move(drafted), state_->session.get()),
                         &state_->accelerated);
}

int64_t SavedModel::compiled_program_count() const {
  return state_->accelerated == nullptr ? 0 : state_->accelerated->compiled_count();
}

std::vector<AcceleratedSignature> SavedModel::signatures_on_accelerator() const {
  if (state_->accelerated == nullptr) return {};
  return state_->accelerated->signatures();
}

std::vector<pjrt::UploadFigures> SavedModel::accelerator_uploads() const {
  return state_->accelerated == nullptr ? std::vector<pjrt::UploadFigures>()
                                        : state_->accelerated->upload_figures();
}

int64_t SavedModel::accelerator_bytes() const {
  return state_->accelerated == nullptr ? 0 : state_->accelerated->parameter_bytes();
}

std::vector<pjrt::RunFigures> SavedModel::accelerator_runs() const {
  if (state_->accelerated == nullptr) return {};
  return state_->accelerated->run_figures();
}

Status SavedModel::MeasureSides(int64_t ns_max, const std::atomic<bool>& is_cancelled) const {
  if (state_->accelerated == nullptr) return {};
  for (const auto& [name, signature] : state_->signatures) {
    MeasuredSides* const sides = state_->accelerated->SidesOf(name);
    if (sides == nullptr) continue;
    tensor::RunContext run;
    run.is_cancelled = &is_cancelled;
    run.may_write = false;
    run.deadline_ns = base::MonotonicNs() + ns_max;
    const auto all = tensor::OutputSet::All(signature.outputs.size());
    const auto run_inputs = [&, &signature = signature](const tensor::TensorList& inputs) {
      tensor::TensorList result;
      return Run(signature, all, run, inputs, &result);
    };
    const Status measured = tf::MeasureSides(signature, run_inputs, sides);
    if (is_cancelled) return measured;
    // Sizes that are not measured stay on the accelerator; probes of live runs measure them.
    if (!measured.ok()) LOG(INFO) << "sides of '" << name << "': " << measured.message();
  }
  return {};
}

Status SavedModel::ChooseSide(const std::string& signature, int64_t rows, pjrt::Side side,
                              int64_t probe_one_of) const {
  MeasuredSides* const sides =
      state_->accelerated == nullptr ? nullptr : state_->accelerated->SidesOf(signature);
  if (sides != nullptr && sides->times.Choose(rows, side, probe_one_of)) return {};
  return base::NotFound("signature '" + signature + "' has no choice for " + std::to_string(rows) +
                        " rows");
}

std::vector<std::string> SavedModel::UntunedPrograms(const std::string& cache_directory) const {
  return state_->accelerated == nullptr ? std::vector<std::string>()
                                        : state_->accelerated->UntunedPrograms(cache_directory);
}

OfferedPrograms SavedModel::OfferTunedPrograms(const std::string& cache_directory) const {
  return state_->accelerated == nullptr ? OfferedPrograms()
                                        : state_->accelerated->OfferTuned(cache_directory);
}

int64_t SavedModel::UseTunedPrograms(int64_t rows) const {
  return state_->accelerated == nullptr ? 0 : state_->accelerated->UseTuned(rows);
}

void SavedModel::WithdrawTunedPrograms() const {
  if (state_->accelerated != nullptr) state_->accelerated->WithdrawTuned();
}

Status SavedModel::MakeCallables() {
  MILLPOND_RETURN_IF_ERROR(state_->Enter(Step::kInitialized, "MakeCallables"));
  const ParameterMemoryScope parameter_scope(state_->parameters);
  if (state_->HasFixedVariables()) FixVariables(state_->session.get());
  const auto make_runner = [session = state_->session.get()](const tensor::Signature& signature) {
    return MakeRunner(session, signature);
  };
  for (const auto& [name, signature] : state_->signatures) {
    if (!signature.obstacle.empty()) continue;
    state_->callables.emplace(name, state_->accelerated == nullptr
                                        ? make_runner(signature)
                                        : state_->accelerated->Accelerate(signature, make_runner));
  }
  MILLPOND_RETURN_IF_ERROR(state_->CheckCallables());
  state_->joint_runners =
      std::make_unique<JointRunners>(state_->signatures, state_->meta_graph.graph_def(),
                                     JointCountMax(state_->meta_graph), make_runner);
  if (CurrentRuntimeOptions().serves_session_run) {
    state_->session_callables = std::make_unique<SessionCallables>(state_->session.get());
  }
  // Clear would keep the memory of each node.
  state_->meta_graph = {};
  state_->asset_feeds.clear();
  state_->step = Step::kReady;
  return {};
}

void SavedModel::EndLoading() {
  if (state_->parameters != nullptr) state_->parameters->EndLoading();
}

void SavedModel::KeepState(size_t bytes_max) {
  // Not in the stock runtime, which lacks our device, which sees what kernels write. Writes that no
  // answer shows are not watched, so that they hinder no replay.
  if (state_->writes.writing != Writing::kNone && !CurrentRuntimeOptions().is_stock) {
    state_->write_watch->KeepState(bytes_max, state_->writes.written);
  }
}

size_t SavedModel::KeptStateBytes() const { return state_->write_watch->kept_bytes(); }

size_t SavedModel::PutBackState() { return state_->write_watch->PutBackState(); }

bool SavedModel::IsReady() const { return state_->step == Step::kReady; }
const std::shared_ptr<LoadControl>& SavedModel::control() const { return state_->control; }
const std::vector<std::string>& SavedModel::missing_ops() const { return state_->missing_ops; }

StatusOr<std::vector<MissingKernel>> SavedModel::MissingKernels() const {
  MILLPOND_RETURN_IF_ERROR(state_->Enter(Step::kGraph, "MissingKernels"));
  std::string init_op;
  MILLPOND_RETURN_IF_ERROR(state_->FindInitOp(&init_op));
  return FindMissingKernels(state_->meta_graph, init_op);
}

bool SavedModel::MayWriteVariables() const { return state_->writes.has_writer; }
bool SavedModel::MayChangeAnswers() const {
  return state_->writes.writing == Writing::kChanges ||
         (state_->writes.writing == Writing::kAssigns && state_->write_watch->has_changed());
}
bool SavedModel::CompilesEachShape() const { return state_->writes.compiles_each_shape; }
bool SavedModel::CanBeSealed() const { return state_->writes.can_be_sealed; }
const tensor::RowVerdicts& SavedModel::row_verdicts() const { return state_->row_verdicts; }
const tensor::SignatureMap& SavedModel::signatures() const { return state_->signatures; }
const std::string& SavedModel::signature_def_map() const { return state_->signature_def_map; }

Status SavedModel::MakeCallable(const tensor::Signature& signature,
                                const tensor::OutputSet& outputs) const {
  const auto runner = state_->RunnerOf(signature);
  return runner.ok() ? runner.value()->MakeCallable(outputs) : runner.status();
}

Status SavedModel::Run(const tensor::Signature& signature, const tensor::OutputSet& outputs,
                       const tensor::RunContext& run, const tensor::TensorList& inputs,
                       tensor::TensorList* result) const {
  const auto runner = state_->RunnerOf(signature);
  if (!runner.ok()) return runner.status();
  RunScope scope(run, /*checks_shapes=*/!HasShapesOf(signature, inputs), CurrentRunMemoryBytesMax(),
                 state_->WatchOf(run), CurrentRunsBudget());
  const Status ran = scope.Explain(RunOnItsShare(*runner.value(), outputs, inputs, result));
  if (ran.ok()) result->storage().charge = scope.TakeCharge();
  return ran;
}

const JointRunner* SavedModel::FindOrMakeJoint(
    const std::vector<const tensor::Signature*>& signatures) const {
  return state_->joint_runners == nullptr ? nullptr : state_->joint_runners->FindOrMake(signatures);
}

Status SavedModel::RunJoint(const JointRunner& joint,
                            const std::vector<const tensor::Signature*>& signatures,
                            const tensor::RunContext& run, const tensor::TensorList& inputs,
                            std::vector<tensor::TensorList>* results) const {
  const bool has_shapes = std::all_of(
      signatures.begin(), signatures.end(),
      [&](const tensor::Signature* signature) { return HasShapesOf(*signature, inputs); });
  RunScope scope(run, /*checks_shapes=*/!has_shapes, CurrentRunMemoryBytesMax(),
                 state_->WatchOf(run), CurrentRunsBudget());
  const CoreShareScope core_share;
  const Status ran = scope.Explain(joint.Run(signatures, inputs, results));
  if (!ran.ok()) return ran;
  const auto charge = scope.TakeCharge();
  for (tensor::TensorList& result : *results) result.storage().charge = charge;
  return ran;
}

Status SavedModel::RunSession(const servable::SessionRunNames& names, const tensor::RunContext& run,
                              const tensor::TensorList& fed, tensor::TensorList* fetched) const {
  if (state_->session_callables == nullptr) {
    return {base::Code::kUnimplemented,
            "SessionRun is off: start the server with --enable_session_run"};
  }
  RunScope scope(run, /*checks_shapes=*/true, CurrentRunMemoryBytesMax(), /*writes=*/nullptr,
                 CurrentRunsBudget());
  const CoreShareScope core_share;
  const Status ran = scope.Explain(state_->session_callables->Run(names, fed, fetched));
  if (ran.ok()) fetched->storage().charge = scope.TakeCharge();
  return ran;
}

}  // namespace millpond::tf
