#include "native/inference/batch_verifier.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "native/base/clock.h"
#include "native/inference/answer.h"
#include "native/inference/signature_request.h"
#include "native/servable/batch_check.h"
#include "native/tensor/dtype.h"
#include "native/tensor/small_float.h"
#include "native/tensor/tensor_access.h"
#include "native/tensor/tensor_compare.h"
#include "native/tensor/tensor_rows.h"

namespace millpond::inference {
namespace {

using base::Status;
using tensor::Difference;
using tensor::RowRange;
using tensor::RowVerdict;
using tensor::TensorList;
using tensor::TensorSpec;

constexpr size_t kSamplesMax = 4;
// The rows that are kept of one sample. A few show if rows depend on one another.
constexpr int64_t kSampleRowsMax = 8;
// The rows of the first batch that is run. Each further one has twice the rows.
constexpr int64_t kBatchRowsMin = 2;
// The most rows of a batch that is run.
constexpr int64_t kBatchRowsMax = 1024;
// The elements by which an open size is padded.
constexpr int64_t kPaddingSize = 1;
// How far from zero the numbers of a row are at least that is compared for its padding.
constexpr double kAwayFromZero = 0.25;
// A sample is repeated with other values, because equal rows hide that they are mixed. The first
// variant is the sample. The next ones have other numbers and texts. A model may not take them, as
// an integer may be an unknown id. So the others have other numbers of floating dtypes only.
constexpr int kFullVariantCount = 4;
constexpr int kVariantCount = 7;
// The most that is added to an integer of a sample, and how often to a text.
constexpr int kAddedMax = 3;
constexpr std::string_view kAddedText = " a";

bool HasOpenRows(const TensorSpec& spec) {
  return !spec.is_rank_known ||
         (!spec.dims.empty() && spec.dims.front() == TensorSpec::kUnknownSize);
}

bool IsPlain(const TensorSpec& spec) {
  return spec.dtype == tensor::dtype::kString || tensor::ElementBytes(spec.dtype) > 0;
}

// Returns why tensors of a signature cannot be rows of a batch; "" if they can.
std::string RefuseSpecs(const std::vector<TensorSpec>& specs, const char* kind) {
  for (const TensorSpec& spec : specs) {
    if (!HasOpenRows(spec) || !IsPlain(spec)) {
      return std::string(kind) + " '" + spec.name + "' is " + tensor::DescribeTensor(spec) +
             ", and a batch needs numbers or strings with an open first dimension";
    }
  }
  return specs.empty() ? std::string("it has no ") + kind : "";
}

// Calls `change` with the index of each element among `count`, and the element.
template <typename T, typename Change>
void ChangeAs(void* elements, int64_t count, const Change& change) {
  auto* const bytes = static_cast<char*>(elements);
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    value = static_cast<T>(change(i, value));
    std::memcpy(bytes + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }
}

// Calls `change` with the index of each element among `count`, 16-bit floats, and the element.
template <typename Small, typename Change>
void ChangeSmall(void* elements, int64_t count, const Change& change) {
  ChangeAs<uint16_t>(elements, count, [&change](int64_t at, uint16_t bits) {
    return Small::FromDouble(change(at, Small::ToFloat(bits)));
  });
}

// Changes the numbers of tensor `index` if its dtype is a floating one.
void ChangeFloats(size_t index, TensorList* tensors,
                  const std::function<double(int64_t, double)>& change) {
  const tensor::TensorView view = tensor::ViewTensor(*tensors, index);
  void* const elements = tensor::MutableElements(index, tensors);
  const int64_t count = view.element_count;
  switch (view.dtype) {
    case tensor::dtype::kFloat:
      return ChangeAs<float>(elements, count, change);
    case tensor::dtype::kDouble:
      return ChangeAs<double>(elements, count, change);
    case tensor::dtype::kHalf:
      return ChangeSmall<tensor::Half>(elements, count, change);
    case tensor::dtype::kBfloat16:
      return ChangeSmall<tensor::Bfloat16>(elements, count, change);
    default:
      return;
  }
}

// Returns `value` with that sign, and 1 or -1 for 0. The least number has no other sign, and stays.
template <typename T>
T WithSign(T value, bool is_below) {
  if (value == 0) return is_below ? T{-1} : T{1};
  const bool stays = (value < 0) == is_below || value == std::numeric_limits<T>::min();
  return stays ? value : static_cast<T>(-value);
}

// Sets each number of tensor `index` above zero, or below it if `is_below`: floats by `distance` at
// least, integers by 1. Texts and integers of other sizes stay.
void MoveFromZero(size_t index, bool is_below, double distance, TensorList* tensors) {
  ChangeFloats(index, tensors, [is_below, distance](int64_t, double value) {
    return (is_below ? -1 : 1) * (std::abs(value) + distance);
  });
  const tensor::TensorView view = tensor::ViewTensor(*tensors, index);
  const auto move = [is_below](int64_t, auto value) { return WithSign(value, is_below); };
  void* const elements = tensor::MutableElements(index, tensors);
  if (view.dtype == tensor::dtype::kInt32) ChangeAs<int32_t>(elements, view.element_count, move);
  if (view.dtype == tensor::dtype::kInt64) ChangeAs<int64_t>(elements, view.element_count, move);
}

// Returns what is added to element `at`: 1 or more, and another number in the next variant.
int AddedOf(int64_t at, int variant) { return static_cast<int>((at + variant) % kAddedMax) + 1; }

// Adds a small number to each element of tensor `index`, which has integers of T's size.
template <typename T>
void AddAs(size_t index, int variant, TensorList* tensors) {
  const int64_t count = tensor::ViewTensor(*tensors, index).element_count;
  ChangeAs<T>(tensor::MutableElements(index, tensors), count, [variant](int64_t at, T value) {
    return value + static_cast<T>(AddedOf(at, variant));
  });
}

// Changes the elements of tensor `index` if they are integers or texts. Overflow wraps around.
void ChangeIntegersAndTexts(size_t index, int variant, TensorList* tensors) {
  const tensor::TensorView view = tensor::ViewTensor(*tensors, index);
  switch (view.dtype) {
    case tensor::dtype::kInt8:
    case tensor::dtype::kUint8:
      return AddAs<uint8_t>(index, variant, tensors);
    case tensor::dtype::kInt16:
    case tensor::dtype::kUint16:
      return AddAs<uint16_t>(index, variant, tensors);
    case tensor::dtype::kInt32:
    case tensor::dtype::kUint32:
      return AddAs<uint32_t>(index, variant, tensors);
    case tensor::dtype::kInt64:
    case tensor::dtype::kUint64:
      return AddAs<uint64_t>(index, variant, tensors);
    case tensor::dtype::kString:
      for (int64_t at = 0; at < view.element_count; ++at) {
        std::string text(tensor::StringAt(*tensors, index, at));
        for (int i = 0; i < AddedOf(at, variant); ++i) text += kAddedText;
        (void)tensor::SetString(index, at, text, tensors);  // a few rows: charged to no budget
      }
      return;
    default:
      return;
  }
}

// Returns rows of `sample`, with other values for each variant after the first.
base::StatusOr<TensorList> MakeVariant(const TensorList& sample, int variant) {
  const int64_t rows = std::min(*tensor::CountRows(sample), kSampleRowsMax);
  TensorList made;
  MILLPOND_RETURN_IF_ERROR(
      tensor::JoinRows({{&sample, 0, rows}}, tensor::LayoutOf(sample), rows, &made));
  if (variant == 0) return made;
  const bool is_full = variant < kFullVariantCount;
  const int change = is_full ? variant : variant - kFullVariantCount + 1;
  for (size_t i = 0; i < made.size(); ++i) {
    ChangeFloats(i, &made, [change](int64_t at, double value) {
      return value * (1 - 0.2 * change) + 0.01 * static_cast<double>((at * 7 + change) % 5);
    });
    if (is_full) ChangeIntegersAndTexts(i, change, &made);
  }
  return made;
}

// Makes up one row: small fractions, zeros as integers, and empty strings. An unknown size is 1.
base::StatusOr<TensorList> MakeUpRow(const tensor::Signature& signature) {
  TensorList made;
  made.Reset(signature.inputs.size());
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    const TensorSpec& spec = signature.inputs[i];
    std::vector<int64_t> dims = spec.dims;
    if (dims.empty()) dims = {1};
    std::replace(dims.begin(), dims.end(), TensorSpec::kUnknownSize, int64_t{1});
    MILLPOND_RETURN_IF_ERROR(tensor::MakeTensor(spec.dtype, dims, i, &made));
    if (spec.dtype == tensor::dtype::kString) continue;
    const tensor::TensorView view = tensor::ViewTensor(made, i);
    std::memset(tensor::MutableElements(i, &made), 0, view.bytes.size());
    ChangeFloats(i, &made,
                 [](int64_t at, double) { return static_cast<double>((at * 5 + 1) % 7) / 7; });
  }
  return made;
}

}  // namespace

// The version as Answer runs it: without batches, and each signature by itself.
class BatchVerifier::Recorder final : public servable::Servable {
 public:
  explicit Recorder(BatchVerifier* verifier)
      : verifier_(*verifier), inner_(verifier->servable_.inner()) {}

  const servable::ServableId& id() const override { return inner_.id(); }
  const tensor::SignatureMap& signatures() const override { return inner_.signatures(); }
  const std::string& signature_def_map() const override { return inner_.signature_def_map(); }
  Status MakeCallable(const tensor::Signature& signature,
                      const tensor::OutputSet& outputs) const override {
    return inner_.MakeCallable(signature, outputs);
  }
  Status Run(const tensor::Signature& signature, const tensor::OutputSet& outputs,
             const tensor::RunContext& run, const TensorList& inputs,
             TensorList* result) const override {
    MILLPOND_RETURN_IF_ERROR(inner_.Run(signature, outputs, run, inputs, result));
    Keep(signature, inputs);
    return {};
  }
  std::optional<Status> RunTogether(const std::vector<const tensor::Signature*>& signatures,
                                    const tensor::RunContext& run, const TensorList& inputs,
                                    std::vector<TensorList>* results) const override {
    auto ran = inner_.RunTogether(signatures, run, inputs, results);
    if (ran && ran->ok()) {
      for (const tensor::Signature* signature : signatures) Keep(*signature, inputs);
    }
    return ran;
  }
  const servable::Session* session() const override { return inner_.session(); }

 private:
  void Keep(const tensor::Signature& signature, const TensorList& inputs) const {
    if (!tensor::CountRows(inputs)) return;
    const std::lock_guard<std::mutex> lock(verifier_.mutex_);
    std::vector<TensorList>& samples = verifier_.samples_[signature.name];
    if (samples.size() < kSamplesMax) samples.push_back(tensor::ShareTensors(inputs));
  }

  BatchVerifier& verifier_;
  const servable::Servable& inner_;
};

base::StatusOr<std::string> BatchVerifier::Answer(std::string_view method, base::WireReader request,
                                                  const VerifierLimits& limits) {
  const Recorder recorder(this);
  return AnswerRequest(recorder, method, request, limits.run_ns_max, limits.is_cancelled,
                       limits.may_write);
}

namespace {

Status Cancelled() {
  return {base::Code::kCancelled,
          "the verification of batches stopped; the version is no longer aspired"};
}

// Calls `run` with the context of a run within `limits`, beside live requests. Returns its status,
// or CANCELLED without the call.
template <typename Run>
Status RunWithin(const VerifierLimits& limits, const Run& run) {
  if (limits.AreCancelled()) return Cancelled();
  tensor::RunContext context;
  context.is_cancelled = limits.is_cancelled;
  context.may_write = false;
  if (limits.run_ns_max != tensor::RunContext::kNoDeadline) {
    context.deadline_ns = base::MonotonicNs() + limits.run_ns_max;
  }
  return run(context);
}

// The runs of one signature's verification.
class Trial {
 public:
  // If `is_independent`, a difference counts only if it is large and the other rows make it.
  Trial(const servable::BatchingServable& servable, const tensor::Signature& signature,
        bool is_independent, const VerifierLimits& limits)
      : servable_(servable),
        signature_(signature),
        all_(tensor::OutputSet::All(signature.outputs.size())),
        is_independent_(is_independent),
        limits_(limits) {}

  bool has_rows() const { return !samples_.empty(); }

  // The first rows that were added.
  const TensorList& first_rows() const { return samples_.front().inputs; }

  // Adds rows to compare, with their results alone. Rows of another layout than the first ones are
  // left out: they would join another batch.
  Status Add(TensorList rows) {
    if (!samples_.empty() &&
        !(tensor::LayoutOf(rows) == tensor::LayoutOf(samples_.front().inputs))) {
      return {};
    }
    Sample sample{std::move(rows), {}};
    MILLPOND_RETURN_IF_ERROR(Run(sample.inputs, &sample.result));
    magnitudes_ = servable_.NoteMagnitudes(signature_, sample.result);
    samples_.push_back(std::move(sample));
    return {};
  }

  // Returns "" if batches give what the samples give alone, else a reason.
  std::string Compare() {
    if (!HasRows(samples_.front().result, CountOf(samples_.front()))) {
      return "an output does not have the rows of the inputs";
    }
    for (const int64_t rows : BatchRows()) {
      const auto run_ns = CompareBatch(rows);
      // A busy machine says nothing about the model: smaller batches have passed.
      const bool is_first = rows == BatchRows().front();
      if (!run_ns.ok() && !is_first && !servable::IsOfTheModel(run_ns.status().code())) break;
      if (!run_ns.ok()) return run_ns.status().message();
      const int64_t ns_max = servable_.settings().run_ns_max;
      if (ns_max > 0 && run_ns.value() > ns_max / 2) break;
    }
    return "";
  }

  // Returns "" if a row gives the same with padded inputs, else a reason. The zeros of the padding
  // may matter only beside numbers below or above them, as to a maximum or a minimum.
  std::string ComparePadded() const {
    for (const Sample& sample : samples_) {
      std::string refusal = ComparePadded(sample);
      for (const bool is_below : {true, false}) {
        if (refusal.empty()) refusal = ComparePaddedFarFromZero(sample, is_below);
      }
      if (!refusal.empty()) return refusal;
    }
    return "";
  }

 private:
  struct Sample {
    TensorList inputs;
    TensorList result;  // alone
  };

  // Compares the first row with all of its numbers below or above zero. The model may not take it.
  std::string ComparePaddedFarFromZero(const Sample& sample, bool is_below) const {
    Sample made;
    const Status joined = tensor::JoinRows({{&sample.inputs, 0, 1}},
                                           tensor::LayoutOf(sample.inputs), 1, &made.inputs);
    if (!joined.ok()) return "";
    for (size_t i = 0; i < made.inputs.size(); ++i) {
      MoveFromZero(i, is_below, kAwayFromZero, &made.inputs);
    }
    return Run(made.inputs, &made.result).ok() ? ComparePadded(made) : "";
  }

  std::string ComparePadded(const Sample& sample) const {
    tensor::RowLayout layout = tensor::LayoutOf(sample.inputs);
    for (size_t i = 0; i < layout.columns.size(); ++i) {
      const TensorSpec& spec = signature_.inputs[i];
      std::vector<int64_t>& dims = layout.columns[i].dims;
      for (size_t at = 0; at < dims.size(); ++at) {
        const bool is_open = !spec.is_rank_known || spec.dims[at + 1] == TensorSpec::kUnknownSize;
        dims[at] += is_open ? kPaddingSize : 0;
      }
    }
    TensorList inputs;
    TensorList result;
    Status ran = tensor::JoinRows({{&sample.inputs, 0, 1}}, layout, 1, &inputs);
    if (ran.ok()) ran = Run(inputs, &result);
    if (!ran.ok()) return "padded inputs fail: " + ran.message();
    if (!HasRows(result, 1)) return "an output does not have the rows of the inputs";
    const Difference difference = CompareRows(tensor::ShareRows(sample.result, 0, 1), result);
    return difference.size == Difference::Size::kNone ? ""
                                                      : DescribeHere(difference, "padded inputs");
  }

  Difference CompareRows(const TensorList& a, const TensorList& b) const {
    return tensor::Compare(a, b, magnitudes_, servable_.settings().relative_tolerance);
  }
  std::string DescribeHere(const Difference& difference, const std::string& where) const {
    const auto& outputs = signature_.outputs;
    const bool has_name = difference.tensor < outputs.size();
    return tensor::Describe(difference, has_name ? outputs[difference.tensor].name : "", where);
  }

  // Returns the rows of the batches to run: those that batches will have, as far as that is known.
  std::vector<int64_t> BatchRows() const {
    const servable::BatchSettings& settings = servable_.settings();
    if (!settings.allowed_rows.empty()) return settings.allowed_rows;
    std::vector<int64_t> all;
    const int64_t rows_max = std::min(settings.rows_max, kBatchRowsMax);
    for (int64_t rows = kBatchRowsMin; rows <= rows_max; rows *= 2) all.push_back(rows);
    return all;
  }

  static int64_t CountOf(const Sample& sample) { return *tensor::CountRows(sample.inputs); }
  static bool HasRows(const TensorList& result, int64_t rows) {
    return tensor::CountRows(result) == rows;
  }

  Status Run(const TensorList& inputs, TensorList* result) const {
    return RunWithin(limits_, [&](const tensor::RunContext& run) {
      return servable_.inner().Run(signature_, all_, run, inputs, result);
    });
  }

  // One row of a batch that is tried.
  struct Part {
    const Sample* sample;
    int64_t row;
  };

  // Returns single rows of the samples in turn.
  std::vector<Part> PartsOf(int64_t rows) const {
    std::vector<Part> parts;
    for (int64_t i = 0; i < rows; ++i) {
      const Sample& sample = samples_[static_cast<size_t>(i) % samples_.size()];
      parts.push_back({&sample, (i / static_cast<int64_t>(samples_.size())) % CountOf(sample)});
    }
    return parts;
  }

  Status RunParts(const std::vector<Part>& parts, TensorList* inputs, TensorList* result) const {
    const auto rows = static_cast<int64_t>(parts.size());
    std::vector<RowRange> ranges;
    ranges.reserve(parts.size());
    for (const Part& part : parts) ranges.push_back({&part.sample->inputs, part.row, 1});
    MILLPOND_RETURN_IF_ERROR(
        tensor::JoinRows(ranges, tensor::LayoutOf(samples_.front().inputs), rows, inputs));
    MILLPOND_RETURN_IF_ERROR(Explain(Run(*inputs, result), rows));
    if (HasRows(*result, rows)) return {};
    return base::Internal("an output of a batch does not have the batch's rows");
  }

  // Runs such a batch, and returns the time of the run.
  base::StatusOr<int64_t> CompareBatch(int64_t rows) const {
    const std::vector<Part> parts = PartsOf(rows);
    TensorList inputs;
    TensorList result;
    MILLPOND_RETURN_IF_ERROR(RunParts(parts, &inputs, &result));
    const std::string mixed = FindMixed(parts, result);
    if (!mixed.empty()) return base::Internal(mixed);
    // The first run of a shape also makes what later runs reuse. A load has the lowest priority: on
    // a busy machine most of the time that passes is not the run's.
    const int64_t begin_ns = base::ThreadCpuNs();
    MILLPOND_RETURN_IF_ERROR(Explain(Run(inputs, &result), rows));
    const int64_t run_ns = base::ThreadCpuNs() - begin_ns;
    servable_.LearnCost(signature_, rows, run_ns);
    return run_ns;
  }

  // Describes the first row whose result depends on the other rows of its batch; "" if there is
  // none.
  std::string FindMixed(const std::vector<Part>& parts, const TensorList& result) const {
    bool may_look_beside = true;  // once a batch, because it takes a run
    for (size_t i = 0; i < parts.size(); ++i) {
      const TensorList alone = tensor::ShareRows(parts[i].sample->result, parts[i].row, 1);
      const TensorList batched = tensor::ShareRows(result, static_cast<int64_t>(i), 1);
      Difference difference = CompareRows(alone, batched);
      if (difference.size == Difference::Size::kNone) continue;
      difference.row = static_cast<int64_t>(i);
      const bool is_large = difference.size == Difference::Size::kLarge;
      if (is_independent_ && !is_large) continue;
      bool is_mixed = is_large && !is_independent_;
      if (!is_mixed && std::exchange(may_look_beside, false)) {
        is_mixed = DependsOnOthers(parts[i], i, static_cast<int64_t>(parts.size()), batched,
                                   is_independent_);
      }
      if (!is_mixed) continue;
      return DescribeHere(difference, "a batch of " + std::to_string(parts.size()) + " rows");
    }
    return "";
  }

  // Returns true if row `at` gives something else beside copies of itself.
  bool DependsOnOthers(const Part& own, size_t at, int64_t rows, const TensorList& batched,
                       bool much) const {
    const auto run = [this](const TensorList& inputs, std::vector<TensorList>* results) {
      return Run(inputs, &results->emplace_back());
    };
    const auto beside_copies =
        servable::RunBesideCopies({&own.sample->inputs, own.row, 1}, static_cast<int64_t>(at), rows,
                                  tensor::LayoutOf(samples_.front().inputs), run);
    if (!beside_copies.ok()) return false;
    const Difference difference = CompareRows(batched, beside_copies.value().front());
    return much ? difference.size == Difference::Size::kLarge
                : difference.size != Difference::Size::kNone;
  }

  static Status Explain(const Status& ran, int64_t rows) {
    if (ran.ok()) return ran;
    return {ran.code(), "a batch of " + std::to_string(rows) + " rows fails: " + ran.message()};
  }

  const servable::BatchingServable& servable_;
  const tensor::Signature& signature_;
  const tensor::OutputSet all_;
  const bool is_independent_;
  const VerifierLimits& limits_;
  std::vector<Sample> samples_;
  std::vector<tensor::Magnitude> magnitudes_;  // of the outputs
};

}  // namespace

std::string BatchVerifier::Verify(const tensor::Signature& signature, const RowVerdict& verdict,
                                  std::vector<TensorList> samples, const VerifierLimits& limits) {
  std::string refusal = RefuseSpecs(signature.inputs, "input");
  if (refusal.empty()) refusal = RefuseSpecs(signature.outputs, "output");
  if (!refusal.empty()) return refusal;
  if (verdict.kind == RowVerdict::Kind::kMixes && !servable_.settings().may_mix_rows) {
    return "its graph mixes rows: " + verdict.reason;
  }
  const bool is_independent = verdict.kind == RowVerdict::Kind::kIndependent;
  refusal = Try(signature, is_independent, std::move(samples), limits);
  if (refusal.empty() || is_independent) return refusal;
  return refusal + "; its graph does not show that rows are independent: " + verdict.reason;
}

std::string BatchVerifier::Try(const tensor::Signature& signature, bool is_independent,
                               std::vector<TensorList> samples, const VerifierLimits& limits) {
  const bool is_made_up = samples.empty();
  if (is_made_up) {
    auto made = MakeUpRow(signature);
    if (!made.ok()) return made.status().message();
    samples.push_back(std::move(made.value()));
  }
  Trial trial(servable_, signature, is_independent, limits);
  for (const TensorList& sample : samples) {
    bool takes_all = true;
    for (int variant = 0; variant < kVariantCount; ++variant) {
      if (variant == kFullVariantCount && takes_all) break;
      auto rows = MakeVariant(sample, variant);
      const Status added = rows.ok() ? trial.Add(std::move(rows.value())) : rows.status();
      // The model may not take other values; it takes the rows as they came.
      takes_all = takes_all && added.ok();
      if (added.ok() || variant > 0 || is_independent) continue;
      return is_made_up ? "no warm-up request shows rows that it takes, and made-up rows fail: " +
                              added.message()
                        : added.message();
    }
  }
  // Nothing to compare is no reason against an independent signature: its batches learn their cost.
  if (!trial.has_rows()) return "";
  std::string refusal = trial.Compare();
  if (!refusal.empty()) return refusal;
  verified_rows_[signature.name] = tensor::ShareTensors(trial.first_rows());
  if (servable_.settings().pads_inputs) {
    const std::string padding_refusal = trial.ComparePadded();
    if (!padding_refusal.empty()) servable_.RefusePadding(signature, padding_refusal);
  }
  return "";
}

Status BatchVerifier::Conclude(bool may_write_variables, const VerifierLimits& limits) {
  std::map<std::string, std::vector<TensorList>, std::less<>> samples;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    samples.swap(samples_);
  }
  for (const auto& [name, signature] : servable_.signatures()) {
    const RowVerdict verdict = servable_.VerdictOf(signature);
    if (may_write_variables) {
      servable_.Refuse(signature, "a request may change a variable");
      continue;
    }
    std::vector<TensorList>& own = samples[name];
    const int64_t first_count = own.empty() ? kCheckedAfterMadeUpRows : kCheckedAfterRequests;
    std::string refusal = Verify(signature, verdict, std::move(own), limits);
    // The reason is that runs were cancelled, and not the model.
    if (limits.AreCancelled()) return Cancelled();
    if (!refusal.empty()) {
      servable_.Refuse(signature, std::move(refusal));
      continue;
    }
    servable::BatchChecks checks;
    checks.first_padded_count = first_count;
    if (verdict.kind != RowVerdict::Kind::kIndependent) {
      checks.first_count = first_count;
      checks.goes_on = true;
    }
    servable_.TurnOn(signature, checks);
  }
  return {};
}

base::StatusOr<int64_t> BatchVerifier::WarmUp(const std::vector<servable::HotBatch>& batches,
                                              const VerifierLimits& limits) const {
  const int64_t begin_ns = base::MonotonicNs();
  int64_t run_count = 0;
  for (const servable::HotBatch& batch : batches) {
    if (base::MonotonicNs() - begin_ns >= limits.warm_up_ns_max) break;
    const Status ran = WarmUpFor(batch, limits);
    if (limits.AreCancelled()) return Cancelled();
    run_count += ran.ok() ? 1 : 0;
  }
  return run_count;
}

Status BatchVerifier::WarmUpFor(const servable::HotBatch& batch,
                                const VerifierLimits& limits) const {
  std::vector<const tensor::Signature*> signatures;
  for (const std::string& name : batch.signatures) {
    if (verified_rows_.count(name) == 0) return base::NotFound("'" + name + "' is not batched");
    signatures.push_back(&servable_.signatures().find(name)->second);
  }
  const auto outputs = SelectOutputs(batch.outputs, *signatures.front());
  if (!outputs.ok()) return outputs.status();
  const servable::Servable& inner = servable_.inner();
  const bool is_joint = signatures.size() > 1;
  // If there are too many callables, the callable for all outputs answers.
  if (!is_joint) (void)inner.MakeCallable(*signatures.front(), outputs.value());
  const TensorList& rows = verified_rows_.find(batch.signatures.front())->second;
  const int64_t row_count = servable_.BatchRows(batch.rows);
  const RowRange part{&rows, 0, std::min(*tensor::CountRows(rows), row_count)};
  TensorList inputs;
  MILLPOND_RETURN_IF_ERROR(tensor::JoinRows({part}, tensor::LayoutOf(rows), row_count, &inputs));
  for (int i = 0; i < kWarmUpRunCount; ++i) {
    MILLPOND_RETURN_IF_ERROR(RunWithin(limits, [&](const tensor::RunContext& run) {
      std::vector<TensorList> results(1);
      if (!is_joint) {
        return inner.Run(*signatures.front(), outputs.value(), run, inputs, &results.front());
      }
      // Without a joint run, the signatures run one after the other, as batches of their own.
      return inner.RunTogether(signatures, run, inputs, &results).value_or(Status());
    }));
  }
  return {};
}

}  // namespace millpond::inference
