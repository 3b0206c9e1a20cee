#include "native/tf/signature_draft.h"

#include <set>
#include <utility>

#include "native/tf/device_worth.h"
#include "native/tf/hlo_compiler.h"
#include "native/tf/packed_program.h"
#include "native/tf/split_limits.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace millpond::tf {
namespace {

using base::Status;
using base::StatusOr;

// Returns the bytes of a row of a tensor, whose first dimension is the rows.
size_t RowBytes(int dtype, const std::vector<int64_t>& dims) {
  size_t bytes = tensorflow::DataTypeSize(static_cast<tensorflow::DataType>(dtype));
  for (size_t i = 1; i < dims.size(); ++i) bytes *= dims[i];
  return bytes;
}

using Variables = std::map<ResourceKey, SignatureSplit::Variable>;

// Returns for each signature the variables that its device part would have if no table stayed here.
std::map<std::string, Variables> VariablesOf(const tensorflow::MetaGraphDef& meta_graph,
                                             const tensor::SignatureMap& signatures) {
  std::map<std::string, Variables> variables;
  for (const auto& [name, signature] : signatures) {
    Variables& of_signature = variables[name];
    if (!signature.obstacle.empty()) continue;
    StatusOr<SignatureSplit> split = SplitSignature(meta_graph, signature, "", {});
    if (split.ok()) of_signature = std::move(split.value().variables);
  }
  return variables;
}

// A variable is a table if all signatures only look rows up in it.
Variables Together(const std::map<std::string, Variables>& by_signature) {
  Variables all;
  for (const auto& [name, variables] : by_signature) {
    for (const auto& [key, variable] : variables) {
      const auto [known, is_new] = all.emplace(key, variable);
      if (!is_new) known->second.is_table = known->second.is_table && variable.is_table;
    }
  }
  return all;
}

// Adds the nodes of the device part that the error of a translation names, as "{{node NAME}}", to
// `*barred`. Returns false if it names none.
bool AddNamedNodes(const std::string& error, const SignatureSplit& split, HostNodes* barred) {
  bool has_added = false;
  for (const tensorflow::NodeDef& node : split.device_graph->graph_def().node()) {
    if (error.find("{{node " + node.name() + "}}") == std::string::npos) continue;
    has_added = barred->emplace(node.name(), "XLA cannot compile: " + error).second || has_added;
  }
  return has_added;
}

std::string InWords(const std::set<std::string>& host_ops) {
  std::string words;
  for (const std::string& op : host_ops) words += (words.empty() ? "" : ", ") + op;
  return words.empty() ? "" : "; its " + words + " stays on the CPU";
}

// Notes the bytes of the inputs and outputs. Returns UNIMPLEMENTED if the program is not worth its
// transfers.
Status TakeRowBytes(const DraftRules& rules, const HloProgram& program, int64_t rows,
                    SignatureDraft* draft) {
  size_t bytes = 0;
  for (const auto& input : draft->split.device.inputs) {
    draft->input_bytes.push_back(RowBytes(input.dtype, input.dims));
    bytes += draft->input_bytes.back();
  }
  for (size_t i = 0; i < draft->split.device.outputs.size(); ++i) {
    draft->output_bytes.push_back(
        RowBytes(draft->split.device.outputs[i].dtype, program.output_dims[i]));
    bytes += draft->output_bytes.back();
  }
  const std::string reason =
      WhyNotWorthAccelerating(CountProductFlops(program.hlo) / rows, static_cast<int64_t>(bytes));
  if (reason.empty() || !rules.only_if_worth) return {};
  return {base::Code::kUnimplemented, reason + InWords(draft->split.host_ops)};
}

// Translates for the most rows first, which tells whether the others are worth it.
Status Translate(const DraftRules& rules, SignatureDraft* draft) {
  const auto compiler = HloCompiler::Make(*draft->split.device_graph, draft->split.device);
  if (!compiler.ok()) return compiler.status();
  draft->variables = compiler.value()->variables();
  for (auto rows = rules.rows.rbegin(); rows != rules.rows.rend(); ++rows) {
    StatusOr<HloProgram> program = compiler.value()->Translate(*rows);
    if (!program.ok()) return program.status();
    if (draft->hlo_by_rows.empty()) {
      MILLPOND_RETURN_IF_ERROR(TakeRowBytes(rules, program.value(), *rows, draft));
    }
    StatusOr<std::string> packed =
        PackProgram(program.value().hlo, draft->split.device.inputs.size());
    MILLPOND_RETURN_IF_ERROR(base::MoveValue(std::move(packed), &draft->hlo_by_rows[*rows]));
  }
  return {};
}

// XLA refuses some nodes only when it translates them, because a size is not a constant. Then the
// graph is cut again, behind them.
StatusOr<SignatureDraft> MakeDraft(const DraftRules& rules,
                                   const tensorflow::MetaGraphDef& meta_graph,
                                   const tensor::Signature& signature, const std::string& prefix,
                                   const std::set<ResourceKey>& host_tables) {
  constexpr int kCutsMax = 8;
  SplitLimits limits{{}, host_tables};
  for (int cuts = 1;; ++cuts) {
    StatusOr<SignatureSplit> split = SplitSignature(meta_graph, signature, prefix, limits);
    if (!split.ok()) return split.status();
    SignatureDraft draft;
    draft.signature = &signature;
    draft.split = std::move(split.value());
    const Status translated = Translate(rules, &draft);
    if (translated.ok()) return draft;
    if (cuts == kCutsMax || !AddNamedNodes(translated.message(), draft.split, &limits.barred)) {
      return translated;
    }
  }
}

// Says what the accelerator and the CPU run. `variables` are those of the whole signature.
AcceleratedSignature ReportOf(const SignatureDraft& draft, const Variables& variables,
                              const std::set<ResourceKey>& host_tables) {
  AcceleratedSignature report;
  report.name = draft.signature->name;
  for (const auto& [rows, hlo] : draft.hlo_by_rows) report.rows.push_back(rows);
  report.needs_exact_rows = draft.split.needs_exact_rows;
  report.host_ops.assign(draft.split.host_ops.begin(), draft.split.host_ops.end());
  for (const auto& [key, variable] : variables) {
    if (host_tables.count(key) > 0) report.host_tables.push_back(key.name);
  }
  return report;
}

// Stops at the first error.
pjrt::Filled Fill(const SignatureDraft& draft, const pjrt::AheadCompiler& compiler,
                  const pjrt::ExecutableCache& cache) {
  for (const auto& [rows, hlo] : draft.hlo_by_rows) {
    pjrt::Filled filled = cache.Fill(compiler, hlo);
    if (!filled.compiled.ok() || !filled.written.ok()) return filled;
  }
  return {};
}

}  // namespace

SignatureDrafts DraftSignatures(const tensorflow::MetaGraphDef& meta_graph,
                                const tensor::SignatureMap& signatures, const DraftRules& rules) {
  SignatureDrafts made;
  const std::map<std::string, Variables> variables = VariablesOf(meta_graph, signatures);
  const std::set<ResourceKey> host_tables =
      ChooseHostTables(Together(variables), rules.tables, rules.room_bytes);
  for (const auto& [name, signature] : signatures) {
    AcceleratedSignature& report = made.reports[name];
    report.name = name;
    report.reason = signature.obstacle;
    if (!report.reason.empty()) continue;
    const std::string prefix = "millpond/" + std::to_string(made.reports.size()) + "/";
    StatusOr<SignatureDraft> draft = MakeDraft(rules, meta_graph, signature, prefix, host_tables);
    if (!draft.ok()) {
      report.reason = draft.status().message();
      continue;
    }
    draft.value().report = ReportOf(draft.value(), variables.at(name), host_tables);
    made.drafts.push_back(std::move(draft.value()));
  }
  return made;
}

StatusOr<std::vector<AcceleratedSignature>> CompileAhead(const tensorflow::MetaGraphDef& meta_graph,
                                                         const tensor::SignatureMap& signatures,
                                                         const DraftRules& rules,
                                                         const pjrt::AheadCompiler* compiler,
                                                         const pjrt::ExecutableCache& cache) {
  SignatureDrafts made = DraftSignatures(meta_graph, signatures, rules);
  for (SignatureDraft& draft : made.drafts) {
    const pjrt::Filled filled =
        compiler == nullptr ? pjrt::Filled() : Fill(draft, *compiler, cache);
    MILLPOND_RETURN_IF_ERROR(filled.written);
    AcceleratedSignature& report = made.reports.at(draft.signature->name);
    if (filled.compiled.ok()) {
      report = std::move(draft.report);
    } else {
      report.reason = filled.compiled.message();
    }
  }
  std::vector<AcceleratedSignature> reports;
  for (auto& [name, report] : made.reports) reports.push_back(std::move(report));
  return reports;
}

}  // namespace millpond::tf
