/* What the book of stages shares with the shortcuts, and the lines that stages were begun at before. */

#ifndef RANKSCOPE_LEDGER_H
#define RANKSCOPE_LEDGER_H

#include "frames.h"

#define PLACES 64 /* lines that are remembered; a power of two */

/* A line that a stage was begun at, and the stage's record behind the time. */
typedef struct {
    PyObject *name, *code, *outer_code, *tail;
    long lasti, outer_lasti;
    unsigned long thread;
} Place;

typedef struct {
    PyObject_HEAD
    char ready;
    PyObject *open, *begun, *passed;
    Py_buffer page;
    uint64_t *words;
    Py_ssize_t counters, stages, ring, stage_words, slots, ended, tail_bytes;
    Place places[PLACES];
} Ledger;

static Ledger *LEDGER; /* of the book that was made last */
static PyObject *BOOK; /* borrowed: compared, never used */

static int ledger_init(Ledger *ledger, PyObject *args, PyObject *keywords) {
    static char *names[] = {"book",   "open",  "begun",       "passed", "counters", "stages",
                            "ring",   "stage_words", "slots", "ended",  "tail_bytes", NULL};
    PyObject *book, *open, *begun, *passed;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO!OOnnnnnnn", names, &book, &PyDict_Type, &open, &begun, &passed,
                                     &ledger->counters, &ledger->stages, &ledger->ring, &ledger->stage_words,
                                     &ledger->slots, &ledger->ended, &ledger->tail_bytes)) {
        return -1;
    }
    replace(&ledger->open, open);
    replace(&ledger->begun, begun);
    replace(&ledger->passed, passed);
    replace((PyObject **)&LEDGER, (PyObject *)ledger);
    BOOK = book;
    return 0;
}

static void forget(Place *place) {
    Py_CLEAR(place->name);
    Py_CLEAR(place->code);
    Py_CLEAR(place->outer_code);
    Py_CLEAR(place->tail);
}

static void ledger_dealloc(Ledger *ledger) {
    Py_XDECREF(ledger->open);
    Py_XDECREF(ledger->begun);
    Py_XDECREF(ledger->passed);
    for (int at = 0; at < PLACES; at++) {
        forget(&ledger->places[at]);
    }
    if (ledger->words != NULL) {
        PyBuffer_Release(&ledger->page);
    }
    PyObject_Free(ledger);
}

static PyObject *ledger_use(Ledger *ledger, PyObject *map) {
    Py_ssize_t least = 8 * (ledger->ring + ledger->slots * ledger->stage_words);
    return move(map, least, &ledger->page, &ledger->words) < 0 ? NULL : Py_NewRef(Py_None);
}

static Place *place_of(Ledger *ledger, PyObject *code, long lasti) {
    return &ledger->places[((uintptr_t)code / 16 + (uintptr_t)lasti / 2) % PLACES];
}

static PyObject *ledger_remember(Ledger *ledger, PyObject *args) {
    Place new;
    if (!PyArg_ParseTuple(args, "UOlOlkS", &new.name, &new.code, &new.lasti, &new.outer_code, &new.outer_lasti,
                          &new.thread, &new.tail)) {
        return NULL;
    }
    if (PyBytes_GET_SIZE(new.tail) != ledger->tail_bytes) {
        PyErr_SetString(PyExc_ValueError, "not the record of a stage");
        return NULL;
    }
    Place *place = place_of(ledger, new.code, new.lasti);
    Py_INCREF(new.name);
    Py_INCREF(new.code);
    Py_INCREF(new.outer_code);
    Py_INCREF(new.tail);
    forget(place);
    *place = new;
    Py_RETURN_NONE;
}

static PyMemberDef ledger_members[] = {
    {"ready", T_BOOL, offsetof(Ledger, ready), 0, NULL},
    {NULL},
};

static PyMethodDef ledger_methods[] = {
    {"use", (PyCFunction)ledger_use, METH_O, "Write to this page from now on."},
    {"remember", (PyCFunction)ledger_remember, METH_VARARGS, "A stage that was begun at a line, by name."},
    {NULL},
};

static PyTypeObject LedgerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rankscope.probe._quick.Ledger",
    .tp_basicsize = sizeof(Ledger),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)ledger_init,
    .tp_dealloc = (destructor)ledger_dealloc,
    .tp_methods = ledger_methods,
    .tp_members = ledger_members,
};

/* The record of a stage that this line has begun before, with this name and in this thread; borrowed. */
static PyObject *known_tail(Ledger *ledger, PyObject *name, PyFrameObject *frame, unsigned long thread) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    Place *place = place_of(ledger, (PyObject *)code, instruction(frame));
    Py_DECREF(code); /* the frame holds it */
    if (place->name != name || place->thread != thread || !is_at(frame, place->code, place->lasti)) {
        return NULL;
    }
    PyFrameObject *outer = PyFrame_GetBack(frame);
    int same = outer == NULL ? place->outer_code == Py_None : is_at(outer, place->outer_code, place->outer_lasti);
    Py_XDECREF(outer);
    return same ? place->tail : NULL;
}

#endif
