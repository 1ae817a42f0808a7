package dies

import (
	"fmt"
	"os"
	"testing"
)

func TestDies(t *testing.T) {
	fmt.Println("its last words")
	os.Exit(3)
}
