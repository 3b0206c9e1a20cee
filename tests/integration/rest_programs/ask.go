// Sends requests with Go's client. Arguments: URL, and a file with a JSON list of [method, path, body or null].
// Prints a JSON list of [status, body].
package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	var questions [][]*string
	if err := json.Unmarshal(must(os.ReadFile(os.Args[2])), &questions); err != nil {
		panic(err)
	}
	answers := [][]any{}
	for _, question := range questions {
		var body io.Reader
		if question[2] != nil {
			body = strings.NewReader(*question[2])
		}
		request := must(http.NewRequest(*question[0], os.Args[1]+*question[1], body))
		response := must(http.DefaultClient.Do(request))
		text := must(io.ReadAll(response.Body))
		response.Body.Close()
		answers = append(answers, []any{response.StatusCode, string(text)})
	}
	json.NewEncoder(os.Stdout).Encode(answers)
}
