#include "native/inference/multi_inference.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "native/base/limits.h"
#include "native/inference/classify.h"
#include "native/inference/regress.h"
#include "native/inference/signature_request.h"
#include "native/inference/tf_example_reply.h"

namespace millpond::inference {
namespace {

using base::Status;
using base::StatusOr;
using base::WireReader;
using base::WireTag;
using base::WireType;
using Task = MultiInferenceRequest::Task;

constexpr uint32_t kRequestTasks = 1;
constexpr uint32_t kRequestInput = 2;
constexpr uint32_t kTaskModelSpec = 1;
constexpr uint32_t kTaskMethodName = 2;
constexpr uint32_t kResponseResults = 1;
constexpr uint32_t kResultModelSpec = 1;
constexpr uint32_t kResultClassification = 2;
constexpr uint32_t kResultRegression = 3;

bool ReadTask(WireReader proto, Task* task) {
  WireTag tag;
  WireReader body;
  while (!proto.AtEnd()) {
    if (!proto.ReadTag(&tag)) return false;
    if (tag.field == kTaskModelSpec && tag.type == WireType::kLengthDelimited) {
      if (!task->model_spec) task->model_spec.emplace();
      if (!proto.ReadDelimited(&body) || !ReadModelSpec(body, &*task->model_spec)) return false;
    } else if (tag.field == kTaskMethodName && tag.type == WireType::kLengthDelimited) {
      if (!proto.ReadString(&task->method_name)) return false;
    } else if (!proto.SkipField(tag)) {
      return false;
    }
  }
  return true;
}

bool ReadField(WireTag tag, WireReader* proto, MultiInferenceRequest* request) {
  WireReader body;
  if (tag.type != WireType::kLengthDelimited) return proto->SkipField(tag);
  if (tag.field == kRequestTasks) {
    return request->tasks.size() < base::kMaxNamesPerRequest && proto->ReadDelimited(&body) &&
           ReadTask(body, &request->tasks.emplace_back());
  }
  if (tag.field == kRequestInput) return proto->ReadDelimited(&body) && request->input.Read(body);
  return proto->SkipField(tag);
}

bool NamesVersion(const ModelSpec& spec) {
  return spec.version.has_value() || spec.version_label.has_value();
}

// A task that can run, with its signature found in a version.
struct Job {
  const tensor::Signature* signature;
  bool is_classify;
};

StatusOr<Job> FindJob(const servable::Servable& servable, const Task& task) {
  const std::string& name = task.model_spec->signature_name;
  const bool is_classify = task.method_name == kClassifyMethodName;
  if (!is_classify && task.method_name != kRegressMethodName) {
    return Status(base::Code::kUnimplemented,
                  "Unsupported signature method_name: " + task.method_name + "; use " +
                      std::string(kClassifyMethodName) + " or " + std::string(kRegressMethodName));
  }
  const auto signature =
      is_classify ? FindClassifySignature(servable, name) : FindRegressSignature(servable, name);
  if (!signature.ok()) return signature.status();
  return Job{signature.value(), is_classify};
}

Status CheckBesides(const Job& job, const std::vector<Job>& others) {
  const auto is_same = [&](const Job& other) { return other.signature == job.signature; };
  if (std::any_of(others.begin(), others.end(), is_same)) {
    return base::InvalidArgument("Duplicate evaluation of signature: " + job.signature->name);
  }
  return {};
}

StatusOr<std::vector<Job>> FindJobs(const servable::Servable& servable,
                                    const std::vector<Task>& tasks) {
  std::vector<Job> jobs;
  for (const Task& task : tasks) {
    const auto job = FindJob(servable, task);
    if (!job.ok()) return job.status();
    MILLPOND_RETURN_IF_ERROR(CheckBesides(job.value(), jobs));
    jobs.push_back(job.value());
  }
  return jobs;
}

// Returns the signatures of the jobs if the input of each takes the examples.
StatusOr<std::vector<const tensor::Signature*>> SignaturesOf(const std::vector<Job>& jobs,
                                                             const tensor::TensorList& examples) {
  std::vector<const tensor::Signature*> signatures;
  for (const Job& job : jobs) {
    MILLPOND_RETURN_IF_ERROR(CountExamples(*job.signature, examples).status());
    signatures.push_back(job.signature);
  }
  return signatures;
}

// Returns the serialized result of one job. Its run on `example_count` examples gave `outputs`.
StatusOr<base::ReplyBytes> Encode(const Job& job, int64_t example_count, tensor::TensorList outputs,
                                  const base::ReplyLimits& limits) {
  if (job.is_classify) {
    Classifications classifications;
    MILLPOND_RETURN_IF_ERROR(
        classifications.Read(*job.signature, example_count, std::move(outputs)));
    return EncodeClassifications(classifications, limits);
  }
  Regressions regressions;
  MILLPOND_RETURN_IF_ERROR(regressions.Read(*job.signature, example_count, std::move(outputs)));
  return EncodeRegressions(regressions, limits);
}

void AppendResult(const ModelSpec& spec, uint32_t kind, std::string_view result,
                  base::ReplyBuffer* reply) {
  const size_t spec_bytes = EncodedModelSpecBytes(spec);
  const size_t body_bytes = base::DelimitedBytes(kResultModelSpec, spec_bytes) +
                            base::DelimitedBytes(kind, result.size());
  char* const to = reply->Extend(base::DelimitedBytes(kResponseResults, body_bytes));
  if (to == nullptr) return;
  base::WireWriter writer(to);
  writer.Delimited(kResponseResults, body_bytes);
  writer.Delimited(kResultModelSpec, spec_bytes);
  WriteModelSpec(spec, &writer);
  writer.BytesField(kind, result);
}

Status EncodeAll(const std::vector<Job>& jobs, int64_t example_count, servable::PreparedRun* run,
                 base::ReplyBytes* reply) {
  const base::ReplyLimits limits = run->context.reply_limits();
  base::ReplyBuffer buffer(limits);
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    const auto result = Encode(job, example_count, std::move(run->results[i]), limits);
    if (!result.ok()) return result.status();
    AppendResult(AnsweredSpec(*run->servable, *job.signature),
                 job.is_classify ? kResultClassification : kResultRegression, result.value().view(),
                 &buffer);
  }
  return base::MoveValue(buffer.Take(), reply);
}

}  // namespace

Status DecodeMultiInferenceRequest(WireReader proto, MultiInferenceRequest* request) {
  const size_t message_bytes = proto.remaining_bytes();
  WireTag tag;
  while (!proto.AtEnd()) {
    if (proto.ReadTag(&tag) && ReadField(tag, &proto, request)) continue;
    return base::InvalidArgument(
        "the message's " + std::to_string(message_bytes) +
        " bytes are not a tensorflow.serving.MultiInferenceRequest, or have more than " +
        std::to_string(base::kMaxNamesPerRequest) + " tasks");
  }
  return {};
}

StatusOr<ModelSpec> SpecOfAllTasks(const MultiInferenceRequest& request) {
  if (request.tasks.empty()) {
    return base::InvalidArgument("Missing ModelSpec; the request has no tasks");
  }
  const ModelSpec* chosen = nullptr;
  for (const Task& task : request.tasks) {
    if (!task.model_spec || task.model_spec->name.empty()) {
      return base::InvalidArgument("Found ModelSpec with an empty model name.");
    }
    const ModelSpec& spec = *task.model_spec;
    if (chosen == nullptr) chosen = &spec;
    if (spec.name != chosen->name) {
      return base::InvalidArgument(
          "All ModelSpecs in a MultiInferenceRequest must access the same model name: one is '" +
          chosen->name + "', one '" + spec.name + "'");
    }
    if (!NamesVersion(spec)) continue;
    if (!NamesVersion(*chosen)) chosen = &spec;
    if (spec.version == chosen->version && spec.version_label == chosen->version_label) continue;
    return base::InvalidArgument(
        "All ModelSpecs in a MultiInferenceRequest must access the same version of '" + spec.name +
        "': name it in one task, or alike in all");
  }
  return *chosen;
}

std::string SignatureNamesOf(const MultiInferenceRequest& request) {
  std::set<std::string_view> sorted;
  for (const Task& task : request.tasks) {
    std::string_view name;
    if (task.model_spec) name = task.model_spec->signature_name;
    sorted.insert(name.empty() ? tensor::kDefaultSignatureName : name);
  }
  std::string names;
  for (const std::string_view name : sorted) names.append(name).push_back('\0');
  return names;
}

Status PrepareMultiInference(const servable::Servable& servable,
                             const MultiInferenceRequest& request,
                             Prepared<base::ReplyBytes>* prepared) {
  auto jobs = FindJobs(servable, request.tasks);
  if (!jobs.ok()) return jobs.status();
  servable::PreparedRun& run = prepared->run;
  MILLPOND_RETURN_IF_ERROR(request.input.MakeTensor(&run.inputs));
  auto signatures = SignaturesOf(jobs.value(), run.inputs);
  if (!signatures.ok()) return signatures.status();
  run.servable = &servable;
  run.signatures = std::move(signatures.value());
  prepared->encode = [jobs = std::move(jobs.value()), count = request.input.example_count()](
                         servable::PreparedRun* ran, base::ReplyBytes* reply) {
    return EncodeAll(jobs, count, ran, reply);
  };
  return {};
}

}  // namespace millpond::inference
