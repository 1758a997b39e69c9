/* Whether the loss is finite, and the rank's own gradient. */

#ifndef RANKSCOPE_GRADIENT_H
#define RANKSCOPE_GRADIENT_H

#include "shortcut.h"

/* Whether the pass is that of one loss, a finite number. */
static int has_finite_loss(Beat *beat, PyObject *given) {
    PyObject *losses = PyTuple_GET_ITEM(given, 0);
    return PyTuple_CheckExact(losses) && PyTuple_GET_SIZE(losses) == 1 &&
           is_finite_number(beat->describe, beat->tensor, PyTuple_GET_ITEM(losses, 0));
}

static PyObject *own_gradient(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Shortcut *shortcut = (Shortcut *)self;
    Beat *beat = shortcut->beat;
    if (beat->full || beat->losses == Py_None || !beat->loss_is_finite || PyVectorcall_NARGS(nargsf) != 1 ||
        !PyTuple_CheckExact(args[0]) || PyTuple_GET_SIZE(args[0]) == 0 ||
        !looks_finite(beat->describe, beat->tensor, PyTuple_GET_ITEM(args[0], 0))) {
        return PyObject_Vectorcall(shortcut->usual, args, nargsf, keywords);
    }
    beat->loss_is_finite = 0;
    replace(&beat->losses, Py_None);
    end_pass(beat, (long long)beat->words[beat->counters + STEPS]);
    Py_RETURN_NONE;
}

#endif
