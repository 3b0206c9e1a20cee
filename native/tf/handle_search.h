#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace tensorflow {
class MetaGraphDef;
class NodeDef;
}  // namespace tensorflow

namespace millpond::tf {

class GraphWalk;

// The op that makes the handle of a variable.
inline constexpr char kHandleOp[] = "VarHandleOp";

// Finds the variables that a resource handle may belong to, through the calls of functions. Borrows
// the graph. One thread.
class HandleSearch {
 public:
  // The keys of variables.
  using Names = std::unordered_set<std::string>;

  // How a search takes the tables in which keys are looked up, whose handles are not of variables.
  enum class LookUpTables { kAreDoubts, kAreLeftOut };

  HandleSearch(const GraphWalk& graph, const tensorflow::MetaGraphDef& meta_graph,
               LookUpTables tables = LookUpTables::kAreDoubts);

  // Adds the keys of the VarHandleOps behind an input of a node of `function`. Returns false if the
  // handle may come from elsewhere.
  bool AddSources(const std::string& function, const std::string& input, Names* sources);

  // Begins a new search. AddSources looks at each handle once in a search.
  void Forget() { seen_.clear(); }

  // The key of a variable: its container and its name.
  static std::string KeyOf(const tensorflow::NodeDef& node);
  static std::string NameOf(const std::string& key) { return key.substr(key.find('\n') + 1); }

 private:
  struct Caller {
    std::string function;
    const tensorflow::NodeDef* node;
    size_t first_input;
  };

  void AddCalls(const std::string& function, const tensorflow::NodeDef& node);
  bool AddSourcesOfArgument(const std::string& function, const std::string& name, Names* sources);

  const GraphWalk& graph_;
  const LookUpTables tables_;
  std::unordered_map<std::string, std::vector<Caller>> callers_;
  Names seen_;
};

}  // namespace millpond::tf
